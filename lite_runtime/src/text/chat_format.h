// The text of a conversation, by the role format that an export reduces the model's chat template to.
// export/chat_format.py describes the fields, and proves them equal to the template.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/bundle.h"
#include "text/json.h"

namespace edge_kit {

struct ChatMessage {
  std::string_view role, content;  // UTF-8
};

class ChatFormat {
 public:
  // `chat_format` of a manifest. Throws EK_ERR_NOT_SUPPORTED if the template was not reduced, EK_ERR_FORMAT
  // if the value is damaged.
  explicit ChatFormat(const Json& value);

  // What the template gives for the messages; broken bytes in contents become U+FFFD. Contents are written as
  // they are: one that spells a special token becomes that token where the text is encoded with such. Throws
  // EK_ERR_INVALID_ARGUMENT, naming the message, if they are outside the format.
  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;

 private:
  enum class Role { kSystem, kUser, kAssistant };
  enum class Trim { kNone, kBoth, kLeadingNewlines };
  enum class SystemRule { kAnywhere, kLastInFront, kFirst, kNone };
  struct Pieces {
    std::string before, after;
    Trim trim = Trim::kNone;
  };

  std::vector<Role> check(const std::vector<ChatMessage>& messages) const;
  void append(Role role, std::string_view content, std::string* text) const;

  std::string start_, default_system_, thinking_end_, end_, generation_prompt_;
  SystemRule system_rule_;
  bool alternate_;
  Pieces pieces_[3];  // by Role
};

// Of a model's bundle. EK_ERR_NOT_SUPPORTED also if it has none.
ChatFormat read_chat_format(const Bundle& bundle);

}  // namespace edge_kit
