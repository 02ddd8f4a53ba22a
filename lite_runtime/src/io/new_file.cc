#include "io/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "io/status.h"

namespace edge_kit {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // macOS refuses 2 GiB and more
constexpr size_t kLongestStem = 200;  // names have 255 bytes at most, and what is added needs some
constexpr int kTries = 100;  // names left over from processes that were killed and had the same number

std::atomic<uint32_t> count{0};

// What a link points to, so that the link itself stays. The path as it is if there is nothing yet.
std::string behind_links(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> found(realpath(path.c_str(), nullptr), &std::free);
  return found != nullptr ? found.get() : path;
}

// The path, with a name that can be made longer: cut, between two characters of UTF-8.
std::string stem_of(const std::string& path) {
  const size_t name = path.rfind('/') + 1;  // npos + 1 is 0
  size_t end = std::min(path.size(), name + kLongestStem);
  while (end > name && end < path.size() && (static_cast<uint8_t>(path[end]) & 0xC0) == 0x80) --end;
  return path.substr(0, end);
}

// A wish: the file is whole without, but after a power failure the older one may be back.
void sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

}  // namespace

NewFile::NewFile(const std::string& path) : path_(path), place_(behind_links(path)) {
  struct stat info;
  const bool replaces = stat(path.c_str(), &info) == 0;
  if (replaces && !S_ISREG(info.st_mode)) {
    throw Error(EK_ERR_IO, path + ": cannot be written: it is " +
                               (S_ISDIR(info.st_mode) ? "a folder" : "a device or a pipe") +
                               "; give the name of a file");
  }
  const mode_t mode = replaces ? info.st_mode & 0777 : 0600;
  for (int i = 0; i < kTries && descriptor_ < 0; ++i) {
    temporary_ =
        stem_of(place_) + "." + std::to_string(getpid()) + "-" + std::to_string(count++) + ".tmp";
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (descriptor_ < 0 && errno != EEXIST) break;
  }
  if (descriptor_ < 0) fail(errno);
  if (replaces) fchmod(descriptor_, mode);  // a wish too: not every file system has modes
}

NewFile::~NewFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void NewFile::fail(int error) const {
  throw Error(EK_ERR_IO, path_ + ": cannot be written: " + std::strerror(error) +
                             "; what stood there before is unchanged");
}

void NewFile::write(const void* data, size_t bytes) {
  const uint8_t* from = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(descriptor_, from, std::min(bytes, kMostAtOnce));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail(errno);
    from += put;
    bytes -= static_cast<size_t>(put);
  }
}

void NewFile::finish() {
  if (fsync(descriptor_) != 0) fail(errno);
  const int closed = close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 || std::rename(temporary_.c_str(), place_.c_str()) != 0) fail(errno);
  temporary_.clear();
  sync_folder_of(place_);
}

}  // namespace edge_kit
