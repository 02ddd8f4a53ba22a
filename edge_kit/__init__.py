"""edge-kit: from a checkpoint to one Paddle Lite `.nb` file, decoded natively on the CPU."""

from __future__ import annotations

import os as _os

__version__ = "0.1.0"

# In a checkout `export/` and `targets/` lie beside this folder; an installed wheel has them inside it.
_checkout = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
if _os.path.isfile(_os.path.join(_checkout, "export", "__init__.py")) and _os.path.isfile(
    _os.path.join(_checkout, "setup.py")
):
    __path__.append(_checkout)
