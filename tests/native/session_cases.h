// What the tests of session files share: a small model with every kind of cache, and files in a folder.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "engine_cases.h"

namespace edge_kit_test {

using Bytes = std::vector<uint8_t>;

constexpr int64_t kVocab = 40;

// Planes of keys with a gap behind them, since 24 scales do not fill cache lines; files of a few KB.
inline const ToyModel& small() {
  static const ToyModel model(ToyShape{kVocab, 48, 64, 1, 2, 1, 24});
  return model;
}

struct Kind {
  const char* name;
  bool exact;
  KvType type;
};

constexpr Kind kKinds[] = {{"fp16", false, KvType::kF16},
                           {"int8", false, KvType::kInt8},
                           {"fp32, exact", true, KvType::kF32},
                           {"int8, exact", true, KvType::kInt8}};

inline ModelOptions with(const Kind& kind, int n_threads = 2, const char* isa = "") {
  ModelOptions o = options(n_threads, isa, kind.exact);
  o.kv_type = kind.type;
  return o;
}

// A folder that is gone with its files at the end.
class Folder {
 public:
  Folder() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/tmp") + "/session-file-test.XXXXXX";
    if (mkdtemp(&path_[0]) == nullptr) std::abort();
  }
  ~Folder() {
    for (const std::string& name : names()) unlink((path_ + "/" + name).c_str());
    rmdir(path_.c_str());
  }

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    DIR* folder = opendir(path_.c_str());
    while (const dirent* entry = readdir(folder)) {
      if (entry->d_name[0] != '.') found.push_back(entry->d_name);
    }
    closedir(folder);
    return found;
  }

 private:
  std::string path_;
};

inline Bytes read_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return {};
  Bytes bytes(1 << 20);
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
  std::fclose(file);
  return bytes;
}

inline void write_file(const std::string& path, const Bytes& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!bytes.empty()) std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
}

}  // namespace edge_kit_test
