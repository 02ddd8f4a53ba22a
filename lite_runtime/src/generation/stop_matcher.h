// Finds the first of several strings in a text that comes in pieces.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace edge_kit {

class StopMatcher {
 public:
  // None of `stops` is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Appends to `shown` what cannot belong to a stop string any more, and nothing from one on; true once one
  // is complete.
  bool add(const std::string& text, std::string* shown) {
    held_ += text;
    size_t found = std::string::npos;
    for (const std::string& stop : stops_) found = std::min(found, held_.find(stop));
    const bool stopped = found != std::string::npos;
    const size_t certain = stopped ? found : held_.size() - undecided();
    shown->append(held_, 0, certain);
    held_.erase(0, stopped ? held_.size() : certain);
    return stopped;
  }

  // Appends what is held back, when nothing more comes.
  void flush(std::string* shown) {
    *shown += held_;
    held_.clear();
  }

 private:
  // Bytes at the end that a stop string may begin with.
  size_t undecided() const {
    size_t most = 0;
    for (const std::string& stop : stops_) {
      for (size_t n = std::min(stop.size() - 1, held_.size()); n > most; --n) {
        if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) most = n;
      }
    }
    return most;
  }

  const std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace edge_kit
