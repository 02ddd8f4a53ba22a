// Names what lies in a file that is not a `.nb`, so that the message can say what went wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace edge_kit {

// `head` holds the first min(size, 64) bytes of a file of `size` bytes.
std::string name_content(const uint8_t* head, uint64_t size);

}  // namespace edge_kit
