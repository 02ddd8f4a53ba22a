// A file open for reading that is no folder, device or pipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace edge_kit {

class RegularFile {
 public:
  // Throws EK_ERR_IO with the system's reason; `expected`, such as "a .nb file", is for the message.
  RegularFile(const std::string& path, const std::string& expected);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  uint64_t size() const { return size_; }

  // Bytes [at, at + bytes) of the file. Throws EK_ERR_IO, also where the file has become shorter.
  void read(uint64_t at, void* data, size_t bytes) const;
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  const std::string path_;
  int descriptor_;
  uint64_t size_ = 0;
};

}  // namespace edge_kit
