// A file that appears whole or not at all: written beside its place under another name, then put there. It is
// for its owner alone, as what was said may be in it; an older one is replaced by one with its permissions.
// Where a link stands, the file behind it is replaced.
#pragma once

#include <cstddef>
#include <string>

namespace edge_kit {

class NewFile {
 public:
  // Throws EK_ERR_IO with the system's reason, as all calls do. What stands at `path` must be a regular file,
  // or nothing.
  explicit NewFile(const std::string& path);
  ~NewFile();  // removes what was not finished
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, size_t bytes);
  void finish();  // on the disk, and in the place of an older file

 private:
  [[noreturn]] void fail(int error) const;

  const std::string path_, place_;  // as given, and behind links
  std::string temporary_;
  int descriptor_ = -1;
};

}  // namespace edge_kit
