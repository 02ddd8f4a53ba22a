#include "io/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/status.h"

namespace edge_kit {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // macOS refuses 2 GiB and more

}  // namespace

RegularFile::RegularFile(const std::string& path, const std::string& expected)
    // O_NONBLOCK: opening a pipe by mistake must not wait for a writer.
    : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) fail(std::strerror(errno));
  struct stat info;
  std::string problem;
  if (fstat(descriptor_, &info) != 0) {
    problem = std::strerror(errno);
  } else if (S_ISDIR(info.st_mode)) {
    problem = "it is a folder; expected " + expected;
  } else if (!S_ISREG(info.st_mode)) {
    problem = "it is a device or a pipe; expected " + expected;
  }
  if (!problem.empty()) {
    close(descriptor_);
    fail(problem);
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

RegularFile::~RegularFile() { close(descriptor_); }

void RegularFile::fail(const std::string& problem) const {
  throw Error(EK_ERR_IO, path_ + ": cannot be read: " + problem);
}

void RegularFile::read(uint64_t at, void* data, size_t bytes) const {
  uint8_t* to = static_cast<uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, to, std::min(bytes, kMostAtOnce), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::strerror(errno));
    if (got == 0) fail("it ends at byte " + std::to_string(at) + ", another program made it shorter");
    to += got;
    at += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

}  // namespace edge_kit
