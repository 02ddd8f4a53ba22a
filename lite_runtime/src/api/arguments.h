// Checks and conversions of what callers of the C API give and get.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "api/guard.h"
#include "edge_kit.h"
#include "engine/sampler.h"
#include "text/chat_format.h"

namespace edge_kit {

template <typename Struct>
void check_size(const Struct& given, const char* type) {
  require(given.struct_size == sizeof(Struct),
          std::string(type) + ".struct_size is " + std::to_string(given.struct_size) +
              ", this library's is " + std::to_string(sizeof(Struct)) + ": set it to sizeof(" + type +
              "), with the header of this version");
}

inline void require_array(const void* array, size_t count, const std::string& name, const char* count_name) {
  require(array != nullptr || count == 0, name + " is NULL with " + count_name + " " + std::to_string(count));
}

// Gives `count` the number of elements found, and copies them where there is room for all.
template <typename Elements, typename Element>
void copy_out(const Elements& found, Element* to, size_t capacity, size_t* count) {
  *count = found.size();
  if (found.size() <= capacity) std::copy(found.begin(), found.end(), to);
}

inline Sampling read_sampling(const ek_sampling& given) {
  check_size(given, "ek_sampling");
  Sampling sampling;
  sampling.temperature = given.temperature;
  sampling.top_k = given.top_k;
  sampling.top_p = given.top_p;
  sampling.min_p = given.min_p;
  sampling.repetition_penalty = given.repetition_penalty;
  sampling.seed = given.seed;
  return sampling;
}

inline std::vector<ChatMessage> read_messages(const ek_message* messages, size_t n_messages) {
  require_array(messages, n_messages, "messages", "n_messages");
  std::vector<ChatMessage> read;
  for (size_t i = 0; i < n_messages; ++i) {
    const std::string name = "messages[" + std::to_string(i) + "].";
    require(messages[i].role != nullptr, name + "role is NULL");
    require(messages[i].content != nullptr, name + "content is NULL");
    read.push_back({messages[i].role, messages[i].content});
  }
  return read;
}

}  // namespace edge_kit
