// The native tests' only helper: counts checks, prints the failed ones, main returns test_result().
#pragma once

#include <cstdio>
#include <string>

namespace edge_kit_test {

// Sanitized code runs some ten times slower: tests leave out the large shapes, which have no code of their own.
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

inline int test_result() {
  std::printf("%d passed, %d failed\n", counts().passed, counts().failed);
  return counts().failed == 0 && counts().passed > 0 ? 0 : 1;
}

}  // namespace edge_kit_test

#define CHECK(condition) edge_kit_test::check((condition), __FILE__, __LINE__, #condition)
// `what` is a std::string that names the case.
#define CHECK_CASE(condition, what) \
  edge_kit_test::check((condition), __FILE__, __LINE__, std::string(#condition) + " in " + (what))
