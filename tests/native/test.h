// The native tests' only helper. A test program is a list of TESTs and a main that returns run_tests():
//
//   TEST(adds) { CHECK(1 + 1 == 2); }
//   int main() { return edge_kit_test::run_tests(); }
//
// A CHECK that fails is printed and the test goes on; a REQUIRE that fails ends its test.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace edge_kit_test {

// Sanitized code runs some ten times slower: tests leave out the large shapes, which have no code of their
// own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

// Emulated code too: EDGE_KIT_EMULATED is set where another CPU runs the tests.
inline bool is_slow() {
  static const bool emulated = std::getenv("EDGE_KIT_EMULATED") != nullptr;
  return kSanitized || emulated;
}

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> list;
  return list;
}

struct Register {
  Register(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

struct Counts {
  int passed = 0, failed = 0;
};

inline Counts& counts() {
  static Counts counts;
  return counts;
}

// Prints at most 20 failures: one cause often fails many checks.
inline bool check(bool ok, const char* file, int line, const std::string& what) {
  if (ok) {
    ++counts().passed;
  } else if (++counts().failed <= 20) {
    std::printf("%s:%d: failed: %s\n", file, line, what.c_str());
  }
  return ok;
}

struct TestEnded {};

inline void require(bool ok, const char* file, int line, const std::string& what) {
  if (!check(ok, file, line, what)) throw TestEnded();
}

template <typename A, typename B>
void require_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  std::ostringstream what;
  what << text;
  if (!(a == b)) what << ": " << a << " != " << b;
  require(a == b, file, line, what.str());
}

inline int run_tests() {
  for (const Test& test : tests()) {
    const int failed = counts().failed;
    try {
      test.body();
    } catch (const TestEnded&) {
    } catch (const std::exception& error) {
      check(false, test.name, 0, error.what());
    }
    std::printf("  %s %s\n", counts().failed == failed ? "ok  " : "FAIL", test.name);
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", counts().passed, counts().failed);
  return counts().failed == 0 && counts().passed > 0 ? 0 : 1;
}

}  // namespace edge_kit_test

#define TEST(name)                                                        \
  static void test_##name();                                              \
  static edge_kit_test::Register register_##name(#name, test_##name);     \
  static void test_##name()

#define CHECK(condition) edge_kit_test::check((condition), __FILE__, __LINE__, #condition)
// `what` is a std::string that names the case.
#define CHECK_CASE(condition, what) \
  edge_kit_test::check((condition), __FILE__, __LINE__, std::string(#condition) + " in " + (what))

#define REQUIRE(condition) edge_kit_test::require((condition), __FILE__, __LINE__, #condition)
#define REQUIRE_EQ(a, b) edge_kit_test::require_equal((a), (b), #a " == " #b, __FILE__, __LINE__)

// The expression throws `type` and its what() contains `text`.
#define REQUIRE_THROWS(expression, type, text)                                                     \
  do {                                                                                             \
    std::string require_message;                                                                   \
    bool require_thrown = false;                                                                   \
    try {                                                                                          \
      (void)(expression);                                                                          \
    } catch (const type& error) {                                                                  \
      require_thrown = true;                                                                       \
      require_message = error.what();                                                              \
    }                                                                                              \
    edge_kit_test::require(require_thrown, __FILE__, __LINE__, #expression " throws " #type);      \
    edge_kit_test::require(require_message.find(text) != std::string::npos, __FILE__, __LINE__,    \
                           "message has '" + std::string(text) + "': " + require_message);         \
  } while (0)
