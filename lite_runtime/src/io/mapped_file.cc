#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

namespace edge_kit {

MappedFile::MappedFile(const std::string& path) : file_(path, "a .nb file") {
  if (file_.size() > std::numeric_limits<size_t>::max()) {
    file_.fail(std::to_string(file_.size()) + " bytes are more than this machine can address");
  }
  size_ = static_cast<size_t>(file_.size());
  if (size_ == 0) return;
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file_.descriptor(), 0);
  if (mapped == MAP_FAILED) file_.fail(std::strerror(errno));
  data_ = static_cast<const uint8_t*>(mapped);
  // From a cold disk only what is looked at is fetched, not 128 KB around each tensor's header.
  madvise(mapped, size_, MADV_RANDOM);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::end_of_open() {
  if (data_ == nullptr) return;
  void* mapped = const_cast<uint8_t*>(data_);
  madvise(mapped, size_, MADV_NORMAL);
  const bool cold = resident_share() < 0.05;
  madvise(mapped, size_, MADV_DONTNEED);  // the pages stay in the page cache
#ifdef POSIX_FADV_DONTNEED
  if (cold) posix_fadvise(file_.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
#else
  static_cast<void>(cold);
#endif
}

// Of the file's pages, in the page cache; 1 where the system does not tell.
double MappedFile::resident_share() const {
#if defined(__linux__)
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((size_ + page - 1) / page);
  if (mincore(const_cast<uint8_t*>(data_), size_, resident.data()) == 0) {
    const auto is_resident = [](unsigned char state) { return (state & 1) != 0; };
    const auto count = std::count_if(resident.begin(), resident.end(), is_resident);
    return static_cast<double>(count) / static_cast<double>(resident.size());
  }
#endif
  return 1;
}

void MappedFile::will_stream(const uint8_t* begin, const uint8_t* end) {
#ifdef MADV_HUGEPAGE
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t first = (std::max(begin, data_) - data_) / page * page;
  const int64_t last = std::min(end, data_ + size_) - data_;
  if (first >= last) return;
  madvise(const_cast<uint8_t*>(data_) + first, static_cast<size_t>(last - first), MADV_HUGEPAGE);
#else
  static_cast<void>(begin), static_cast<void>(end);
#endif
}

}  // namespace edge_kit
