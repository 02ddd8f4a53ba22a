// A test program is a list of TEST functions and a main that calls run_tests(): no framework needed.
//
//   TEST(adds) { CHECK_EQ(1 + 1, 2); }
//   int main() { return run_tests(); }
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace check {

inline std::vector<std::pair<const char*, std::function<void()>>>& tests() {
  static std::vector<std::pair<const char*, std::function<void()>>> list;
  return list;
}

struct Register {
  Register(const char* name, std::function<void()> body) { tests().emplace_back(name, std::move(body)); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::ostringstream text;
  text << file << ":" << line << ": " << what;
  throw std::runtime_error(text.str());
}

template <typename A, typename B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream message;
  message << text << ": " << a << " != " << b;
  fail(file, line, message.str());
}

}  // namespace check

#define TEST(name)                                          \
  static void test_##name();                                \
  static check::Register register_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition) \
  do {                   \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition); \
  } while (0)

#define CHECK_EQ(a, b) check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)

// The expression throws `type` and its what() contains `text`.
#define CHECK_THROWS(expression, type, text)                                                        \
  do {                                                                                              \
    std::string check_message;                                                                      \
    bool check_thrown = false;                                                                      \
    try {                                                                                           \
      (void)(expression);                                                                           \
    } catch (const type& error) {                                                                   \
      check_thrown = true;                                                                          \
      check_message = error.what();                                                                 \
    }                                                                                               \
    if (!check_thrown) check::fail(__FILE__, __LINE__, #expression " did not throw " #type);        \
    if (check_message.find(text) == std::string::npos)                                              \
      check::fail(__FILE__, __LINE__, "message lacks '" + std::string(text) + "': " + check_message); \
  } while (0)

inline int run_tests() {
  int failed = 0;
  for (const auto& test : check::tests()) {
    try {
      test.second();
      std::printf("  ok    %s\n", test.first);
    } catch (const std::exception& error) {
      std::printf("  FAIL  %s: %s\n", test.first, error.what());
      ++failed;
    }
    std::fflush(stdout);
  }
  return failed == 0 ? 0 : 1;
}
