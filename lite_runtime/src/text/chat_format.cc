#include "text/chat_format.h"

#include <algorithm>
#include <iterator>

#include "io/status.h"
#include "io/utf8.h"
#include "text/unicode.h"

namespace edge_kit {
namespace {

const char* const kManifestName = "manifest.json";
constexpr size_t kMaxManifestBytes = size_t{1} << 20;
constexpr size_t kMaxPieceBytes = size_t{1} << 16;  // export/chat_format.py has the same
const char* const kElsewhere = "render the template elsewhere, such as in Python, and pass the text";
constexpr const char* kRoleNames[] = {"system", "user", "assistant"};

std::string piece(const JsonObject& object, const char* name) {
  std::string text = object[name].string(name);
  if (text.size() > kMaxPieceBytes) {
    object[name].fail(EK_ERR_FORMAT, std::string(name) + " of the chat format has " +
                                         std::to_string(text.size()) + " bytes, expected at most " +
                                         std::to_string(kMaxPieceBytes));
  }
  return text;
}

// The index in `names` of a member's text.
template <typename Choice = int>
Choice choice(const JsonObject& object, const char* name, const std::vector<const char*>& names) {
  const std::string text = piece(object, name);
  std::string known;
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return static_cast<Choice>(i);
    known += std::string(i == 0 ? "" : ", ") + names[i];
  }
  object[name].fail(EK_ERR_FORMAT, std::string(name) + " of the chat format is '" + text.substr(0, 40) +
                                       "', known are " + known +
                                       ". Export the model again, or update edge-kit");
}

// White space as Python's str.strip() has it: Unicode's, and four separators of ASCII.
bool is_blank(uint32_t code_point) {
  return char_class(code_point) == CharClass::kSpace || (code_point >= 0x1C && code_point <= 0x1F);
}

// Of sound UTF-8.
std::string_view stripped(std::string_view text) {
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text.data() + at, text.size() - at);
    if (!is_blank(step.code_point)) {
      begin = std::min(begin, at);
      end = at + step.length;
    }
    at += step.length;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

}  // namespace

ChatFormat::ChatFormat(const Json& value) {
  const JsonObject format(value, "chat_format");
  if (choice(format, "status", {"reduced", "not_reduced"}) == 1) {
    value.fail(EK_ERR_NOT_SUPPORTED, "the model's chat template could not be reduced to fixed pieces (" +
                                       piece(format, "reason") + "): " + kElsewhere);
  }
  start_ = piece(format, "start");
  default_system_ = piece(format, "default_system");
  thinking_end_ = piece(format, "thinking_end");
  end_ = piece(format, "end");
  generation_prompt_ = piece(format, "generation_prompt");
  system_rule_ = choice<SystemRule>(format, "system_rule", {"anywhere", "last_in_front", "first", "none"});
  alternate_ = choice(format, "turns", {"any", "alternate"}) == 1;
  const JsonObject roles(format["roles"], "roles");
  for (int i = system_rule_ == SystemRule::kNone ? 1 : 0; i < 3; ++i) {
    const JsonObject role(roles[kRoleNames[i]], kRoleNames[i]);
    pieces_[i].before = piece(role, "before");
    pieces_[i].after = piece(role, "after");
    pieces_[i].trim = choice<Trim>(role, "trim", {"none", "both", "leading_newlines"});
  }
}

std::string ChatFormat::render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const {
  const std::vector<Role> roles = check(messages);
  size_t front = messages.size();  // the system message that is written first
  if (system_rule_ == SystemRule::kLastInFront) {
    for (size_t i = 0; i < roles.size(); ++i) {
      if (roles[i] == Role::kSystem) front = i;
    }
  } else if (roles[0] == Role::kSystem) {
    front = 0;
  }
  std::string text = start_;
  if (front < messages.size()) {
    append(Role::kSystem, messages[front].content, &text);
  } else {
    text += default_system_;
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool left_out = system_rule_ == SystemRule::kLastInFront && roles[i] == Role::kSystem;
    if (i != front && !left_out) append(roles[i], messages[i].content, &text);
  }
  return text + (add_generation_prompt ? generation_prompt_ : end_);
}

// The roles of messages inside the format.
std::vector<ChatFormat::Role> ChatFormat::check(const std::vector<ChatMessage>& messages) const {
  const auto outside = [](const std::string& problem) {
    throw Error(EK_ERR_INVALID_ARGUMENT,
                problem + ". Where the model's own template takes such messages, " + kElsewhere);
  };
  if (messages.empty()) throw Error(EK_ERR_INVALID_ARGUMENT, "there are no messages, expected at least one");
  std::vector<Role> roles;
  size_t turns = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string name = "messages[" + std::to_string(i) + "]: ";
    const auto known = std::find(std::begin(kRoleNames), std::end(kRoleNames), messages[i].role);
    if (known == std::end(kRoleNames)) {
      outside(name + "the role is '" + std::string(messages[i].role.substr(0, 40)) +
              "', expected system, user or assistant");
    }
    const Role role = static_cast<Role>(known - std::begin(kRoleNames));
    roles.push_back(role);
    if (role == Role::kSystem) {
      if (system_rule_ == SystemRule::kNone) outside(name + "this chat format has no system message");
      if (system_rule_ == SystemRule::kFirst && i > 0) {
        outside(name + "a system message, which this chat format has as the first message only");
      }
      continue;
    }
    const Role next = turns++ % 2 == 0 ? Role::kUser : Role::kAssistant;
    if (alternate_ && role != next) {
      outside(name + "the role is " + kRoleNames[static_cast<int>(role)] + ", expected " +
              kRoleNames[static_cast<int>(next)] +
              ": user and assistant take turns in this chat format, and the user begins");
    }
  }
  if (alternate_ && turns == 0) outside("there is no user message, this chat format expects one");
  return roles;
}

void ChatFormat::append(Role role, std::string_view content, std::string* text) const {
  const Pieces& pieces = pieces_[static_cast<int>(role)];
  std::string sound;
  append_sound_utf8(content, &sound);
  std::string_view kept = sound;
  if (role == Role::kAssistant && !thinking_end_.empty()) {
    const size_t thinking = kept.rfind(thinking_end_);
    if (thinking != std::string_view::npos) kept.remove_prefix(thinking + thinking_end_.size());
  }
  if (pieces.trim == Trim::kBoth) {
    kept = stripped(kept);
  } else if (pieces.trim == Trim::kLeadingNewlines) {
    kept.remove_prefix(std::min(kept.find_first_not_of('\n'), kept.size()));
  }
  text->append(pieces.before).append(kept).append(pieces.after);
}

ChatFormat read_chat_format(const Bundle& bundle) {
  const std::string label = bundle.label() + ": " + kManifestName;
  if (bundle.contains(kManifestName)) {
    const std::string_view text = bundle.read(kManifestName);
    if (text.size() > kMaxManifestBytes) {
      throw Error(EK_ERR_FORMAT, label + " has " + std::to_string(text.size()) + " bytes, expected at most " +
                                     std::to_string(kMaxManifestBytes));
    }
    const Json format = JsonObject(Json::parse(text, label), "the manifest")["chat_format"];
    if (!format.is_null()) return ChatFormat(format);
  }
  throw Error(EK_ERR_NOT_SUPPORTED, bundle.label() +
                                      ": no chat format behind the tensors: the model has no chat template, or "
                                      "an earlier edge-kit exported it. Export it again, or " +
                                      kElsewhere);
}

}  // namespace edge_kit
