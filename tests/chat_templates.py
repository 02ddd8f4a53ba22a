"""Chat templates in the forms that models come with, written after what their texts are known to be."""

from __future__ import annotations

PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
LLAMA3_TURN = "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
LLAMA3_PROMPT = "<|start_header_id|>assistant<|end_header_id|>\n\n"
# The system message is taken off the front; what is left must take turns.
SPLIT = (
    "{% if messages[0].role == 'system' %}{% set system, rest = messages[0].content, messages[1:] %}"
    "{% else %}{% set system, rest = default, messages %}{% endif %}"
)
ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}"
)


def loop(body: str, over: str = "messages") -> str:
    """The body for each message m."""
    return "{% for m in " + over + " %}" + body + "{% endfor %}"


def chatml(content: str = "{{ m.content }}", front: str = "") -> str:
    """The ChatML form, with another spelling of a message's content and something in front."""
    return front + loop("<|im_start|>{{ m.role }}\n" + content + "<|im_end|>\n") + PROMPT


def llama3(front: str, rest: str, prompt: str) -> str:
    return front + loop(LLAMA3_TURN, rest) + prompt


_LLAMA31_FRONT = (
    SPLIT.replace("default", "''")
    + "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: {{ date }}\n\n{{ system | trim }}<|eot_id|>"
)
_IF_PROMPT = "{% if add_generation_prompt %}" + LLAMA3_PROMPT + "{% endif %}"
_DEFAULT = "{% if messages[0].role != 'system' %}<|im_start|>system\nBe helpful.<|im_end|>\n{% endif %}"

# name → (template, system_rule, turns)
REDUCED = {
    "chatml": (chatml(), "anywhere", "any"),
    "qwen2.5": (chatml(front=_DEFAULT), "anywhere", "any"),
    "chatml with bos": (chatml(front="{{ bos_token }}"), "anywhere", "any"),
    "qwq": (
        chatml(
            "{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
            "{% else %}{{ m.content }}{% endif %}"
        ),
        "anywhere",
        "any",
    ),
    "llama 3": (llama3("{{ bos_token }}", "messages", LLAMA3_PROMPT), "anywhere", "any"),
    "llama 3.1": (
        llama3("{% set date = '26 Jul 2024' %}" + _LLAMA31_FRONT, "rest", _IF_PROMPT),
        "first",
        "any",
    ),
    "zephyr": (
        loop(
            "<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n"
            "{% if loop.last and add_generation_prompt %}<|assistant|>\n{% endif %}"
        ),
        "anywhere",
        "any",
    ),
    "phi 3": (
        loop("<|{{ m.role }}|>\n{{ m.content }}<|end|>\n")
        + "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}",
        "anywhere",
        "any",
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + loop(
            ALTERNATE + "{% set role = 'model' if m.role == 'assistant' else m.role %}"
            "<start_of_turn>{{ role }}\n{{ m.content | trim }}<end_of_turn>\n"
        )
        + "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        "none",
        "alternate",
    ),
    "vicuna": (
        SPLIT.replace("default", "'A chat.'")
        + loop(
            ALTERNATE + "{% if loop.first %}{{ system }}{% endif %}"
            "{% if m.role == 'user' %} USER: {{ m.content.strip() }}"
            "{% else %} ASSISTANT: {{ m.content.strip() }}{{ eos_token }}{% endif %}",
            "rest",
        )
        + "{% if add_generation_prompt %} ASSISTANT:{% endif %}",
        "first",
        "alternate",
    ),
    # A blank message behind the system's loses more than its own spaces: no system messages.
    "llama 2": (
        SPLIT.replace("default", "false")
        + loop(
            ALTERNATE + "{% set text = m.content %}{% if loop.first and system != false %}"
            "{% set text = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + text %}{% endif %}"
            "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}"
            "{% else %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}",
            "rest",
        ),
        "none",
        "alternate",
    ),
    "mistral": (
        "{{ bos_token }}"
        + loop(
            ALTERNATE + "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
            "{% else %}{{ m.content + eos_token }}{% endif %}"
        ),
        "none",
        "alternate",
    ),
}

# name → (template, what the reason says)
NOT_REDUCED = {
    "llama 3.2": (
        llama3("{% set date = strftime_now('%d %b %Y') %}" + _LLAMA31_FRONT, "rest", _IF_PROMPT),
        "writes the date",
    ),
    "date in one answer": (
        chatml("{{ m.content }}{% if 'sky' in m.content %}{{ strftime_now('%d') }}{% endif %}"),
        "writes the date",
    ),
    # Thinking is kept behind the last question, and dropped before it.
    "qwen 3": (
        "{% set last = namespace(at=0) %}"
        + loop("{% if m.role == 'user' %}{% set last.at = loop.index0 %}{% endif %}")
        + chatml(
            "{% if m.role == 'assistant' and loop.index0 < last.at %}{{ m.content.split('</think>')[-1] }}"
            "{% else %}{{ m.content }}{% endif %}"
        ),
        r"the template writes '.*', pieces around each role would give '.*' \(messages of ",
    ),
    "tool results": (
        chatml(
            "{% if m.content.startswith('<result>') and m.content.endswith('</result>') %}tool: {% endif %}"
            "{{ m.content }}"
        ),
        "the template writes ",
    ),
    "many turns": (chatml(front="{% if messages | length > 9 %}...{% endif %}"), "the template writes "),
    "numbered turns": (
        loop("[{{ loop.index }} {{ m.role }}] {{ m.content }}\n"),
        "what stands around user and assistant messages changes from turn to turn",
    ),
    "upper case": (chatml("{{ m.content | upper }}"), "contents do not stand once each and in their order"),
    "backwards": (chatml().replace("in messages", "in messages | reverse"), "in their order"),
    "json": (loop("{{ m | tojson }}\n"), "the template writes "),
    "only a question": (
        "{% if messages[1] %}{{ raise_exception('one question') }}{% endif %}{{ messages[0].content }}",
        r"refuses these messages: one question \(messages of user, assistant, user, assistant\)",
    ),
    "no jinja": ("{% if %}", "no valid Jinja"),
    "long": (chatml(front="x" * 70_000), "a piece of 70000 bytes, a format's have 65536 at most"),
    "half a character": (chatml(front=b"\\ud800".decode("unicode_escape")), "surrogates not allowed"),
}
