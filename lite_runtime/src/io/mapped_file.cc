#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "io/status.h"

namespace edge_kit {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw Error(EK_ERR_IO, path + ": cannot be read: " + problem);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe by mistake must not wait for a writer.
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail(path, std::strerror(errno));
  struct stat info;
  if (fstat(file.fd, &info) != 0) fail(path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) fail(path, "it is a folder; expected a .nb file");
  if (!S_ISREG(info.st_mode)) fail(path, "it is a device or a pipe; expected a .nb file");
  if (static_cast<uint64_t>(info.st_size) > std::numeric_limits<size_t>::max()) {
    fail(path, std::to_string(info.st_size) + " bytes are more than this machine can address");
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (mapped == MAP_FAILED) fail(path, std::strerror(errno));
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
  madvise(mapped, size_, MADV_DONTNEED);  // the pages stay in the page cache
}

void MappedFile::will_stream(const uint8_t* begin, const uint8_t* end) {
#ifdef MADV_HUGEPAGE
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t first = (std::max(begin, data_) - data_) / page * page;
  const int64_t last = std::min(end, data_ + size_) - data_;
  if (first < last) madvise(const_cast<uint8_t*>(data_) + first, static_cast<size_t>(last - first), MADV_HUGEPAGE);
#else
  static_cast<void>(begin), static_cast<void>(end);
#endif
}

}  // namespace edge_kit
