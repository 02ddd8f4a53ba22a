// What the opaque handles of the C API hold. A session keeps its model's core alive, so that a model closed
// before its sessions leads to an error, not to a crash.
#pragma once

#include <memory>

#include "edge_kit.h"
#include "engine/model.h"
#include "text/lazy_tokenizer.h"

struct ek_model {
  std::shared_ptr<edge_kit::Model> core;
  std::shared_ptr<edge_kit::LazyTokenizer> tokenizer = std::make_shared<edge_kit::LazyTokenizer>();
};

struct ek_session {
  std::shared_ptr<edge_kit::Model> core;
  std::shared_ptr<edge_kit::LazyTokenizer> tokenizer;
  std::unique_ptr<edge_kit::Session> session;
};
