// Character classes and canonical composition (NFC), as Hugging Face's tokenizers have them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/unicode_data.h"

namespace edge_kit {

// \p{L}, \p{N}, \s or none of them.
CharClass char_class(uint32_t code_point);

// Normalization Form C (Unicode Standard Annex 15) of sound UTF-8.
std::string nfc(std::string_view text);

}  // namespace edge_kit
