// JSON, read in place: a text is checked once as a whole, values are then views of it.
//
// So a tokenizer of some megabytes needs no tree of nodes. Refused (EK_ERR_FORMAT) are: what is no JSON, text
// that is no UTF-8, half a surrogate pair, nesting deeper than kMaxDepth. The text and its label are borrowed
// and must outlive every view.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/status.h"

namespace edge_kit {

class Json {
 public:
  static constexpr int kMaxDepth = 128;

  Json();  // null
  // `label` names the text in messages.
  static Json parse(std::string_view text, const std::string& label);

  bool is_null() const { return text_[0] == 'n'; }
  bool is_string() const { return text_[0] == '"'; }
  bool is_number() const { return text_[0] == '-' || (text_[0] >= '0' && text_[0] <= '9'); }
  bool is_array() const { return text_[0] == '['; }
  bool is_object() const { return text_[0] == '{'; }
  std::string_view text() const { return text_; }

  // The value; EK_ERR_FORMAT naming it `what` if it is of another kind.
  bool boolean(const char* what) const;
  int64_t integer(const char* what) const;  // of at most 18 digits
  double number(const char* what) const;    // exact for up to 15 digits and powers of ten up to 22
  std::string string(const char* what) const;
  void each_element(const char* what, const std::function<void(const Json&)>& visit) const;
  void each_member(const char* what, const std::function<void(const std::string&, const Json&)>& visit) const;

  // Throws with the label in front.
  [[noreturn]] void fail(ek_status status, const std::string& problem) const;

 private:
  Json(std::string_view text, const std::string* label) : text_(text), label_(label) {}
  void require(bool is_kind, const char* what, const char* expected) const;

  std::string_view text_;  // of the value alone
  const std::string* label_;
  friend class JsonObject;
};

// The members of an object by name; of equal names the last one counts.
class JsonObject {
 public:
  JsonObject(const Json& value, const char* what);
  const Json& operator[](std::string_view name) const;  // null if absent

 private:
  std::vector<std::pair<std::string, Json>> members_;
  Json absent_;
};

}  // namespace edge_kit
