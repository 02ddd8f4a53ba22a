// The zip archive behind the last tensor: tokenizer, configuration, manifest. lite_runtime/bundle.py reads it
// in Python.
//
// Files are stored in it, not compressed, so that they are read where they lie. Offsets count from the start
// of the file or of the archive; both are common.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "io/nb_file.h"

namespace edge_kit {

class Bundle {
 public:
  // Reads the directory at the end of the `size` bytes at `data`, which are borrowed. Bytes without an
  // archive give an empty bundle, a damaged directory EK_ERR_FORMAT. `label` names the file in messages.
  Bundle(const uint8_t* data, uint64_t size, const std::string& label);

  const std::string& label() const { return label_; }
  bool contains(const std::string& name) const { return entries_.count(name) > 0; }
  // Content of a file that the bundle contains; EK_ERR_FORMAT if it is damaged, by its CRC-32 too.
  std::string_view read(const std::string& name) const;

 private:
  struct Entry {
    uint64_t header;  // where the file's own header lies
    uint64_t bytes, stored_bytes;
    uint32_t crc;
    uint16_t flags, method;
  };

  [[noreturn]] void fail(const std::string& problem) const;
  // The `size` bytes at `position` exist.
  const uint8_t* at(uint64_t position, uint64_t size, const char* what) const;
  bool find_end(uint64_t* position) const;
  void read_directory(uint64_t end);
  uint64_t read_entry(uint64_t position, uint64_t end, uint64_t shift);

  const uint8_t* data_;
  uint64_t size_;
  std::string label_;
  std::map<std::string, Entry> entries_;
};

// The bundle of a file, which is borrowed; null = an empty one, of a model that has no file.
Bundle bundle_of(const NbFile* file);

}  // namespace edge_kit
