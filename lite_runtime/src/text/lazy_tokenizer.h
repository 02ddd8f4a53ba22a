// A model's tokenizer, read from its file when text is first asked for.
#pragma once

#include <memory>
#include <mutex>

#include "io/nb_file.h"
#include "text/tokenizer.h"

namespace edge_kit {

class LazyTokenizer {
 public:
  // Any thread. `file` may be null; a file without a tokenizer is EK_ERR_NOT_SUPPORTED.
  std::shared_ptr<const Tokenizer> get(const NbFile* file) {
    std::lock_guard<std::mutex> hold(mutex_);
    if (tokenizer_ == nullptr) {
      tokenizer_ = std::make_shared<const Tokenizer>(read_tokenizer(bundle_of(file)));
    }
    return tokenizer_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace edge_kit
