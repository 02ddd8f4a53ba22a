// A whole file, mapped read-only. The pages are the page cache's own: processes that map one file share them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "io/regular_file.h"

namespace edge_kit {

class MappedFile {
 public:
  // Throws EK_ERR_IO with the system's reason. An empty file maps to no bytes.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  // Gives back the resident pages that were touched so far, and lets later reads run ahead: opening looks at
  // a few bytes here and there, for which the kernel maps 16 pages each; decoding then streams. Of a file
  // that was not in the page cache those few leave it again: a large page is only read where no small one is.
  void end_of_open();

  // Asks for large pages where [begin, end) lies in the mapping; a wish that few systems grant for files.
  void will_stream(const uint8_t* begin, const uint8_t* end);

 private:
  double resident_share() const;

  const RegularFile file_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace edge_kit
