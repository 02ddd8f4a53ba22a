#include "edge_kit.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/arguments.h"
#include "api/guard.h"
#include "api/handles.h"
#include "engine/bandwidth.h"
#include "engine/cpu.h"
#include "engine/sampler.h"
#include "engine/thread_pool.h"
#include "generation/generation_config.h"

#ifndef EK_VERSION
#define EK_VERSION "unknown"
#endif

namespace edge_kit {
namespace {

thread_local char last_error[2048] = "";

ModelOptions read_options(const ek_options* options) {
  ModelOptions result;
  if (options == nullptr) return result;
  check_size(*options, "ek_options");
  require(options->mode == EK_MODE_INT8 || options->mode == EK_MODE_EXACT,
          "mode is " + std::to_string(options->mode) + "; it must be 0 (int8) or 1 (exact)");
  result.n_threads = options->n_threads;
  result.n_ctx = options->n_ctx;
  result.exact = options->mode == EK_MODE_EXACT;
  require(options->kv_dtype >= EK_KV_DEFAULT && options->kv_dtype <= EK_KV_INT8,
          "kv_dtype is " + std::to_string(options->kv_dtype) +
              "; it must be 0 (the mode's), 1 (f16) or 2 (int8)");
  if (options->kv_dtype == EK_KV_F16) result.kv_type = KvType::kF16;
  if (options->kv_dtype == EK_KV_INT8) result.kv_type = KvType::kInt8;
  if (options->isa != nullptr) result.isa = options->isa;
  return result;
}

ek_model* open_model(std::unique_ptr<NbFile> file, ModelOptions options) {
  if (options.n_ctx == 0) {
    const int64_t limit = read_context_limit(bundle_of(file.get()));
    if (limit > 0) options.n_ctx = std::min(limit, kDefaultContext);
  }
  Plan plan = make_plan(*file);
  auto model = std::make_unique<ek_model>();
  model->core = std::make_shared<Model>(std::move(file), std::move(plan), options);
  return model.release();
}

}  // namespace

ek_status fail(ek_status status, const char* message) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", message);
  return status;
}

}  // namespace edge_kit

using namespace edge_kit;

uint32_t ek_abi_version(void) { return EK_ABI_VERSION; }
const char* ek_version(void) { return EK_VERSION; }
const char* ek_last_error(void) { return last_error; }

ek_status ek_model_open(const char* path, const ek_options* options, ek_model** model) {
  return guarded([&] {
    require(model != nullptr, "model is NULL");
    *model = nullptr;
    require(path != nullptr, "path is NULL");
    const ModelOptions read = read_options(options);
    *model = open_model(NbFile::open(path), read);
  });
}

ek_status ek_model_open_memory(const void* data, size_t size, const ek_options* options, ek_model** model) {
  return guarded([&] {
    require(model != nullptr, "model is NULL");
    *model = nullptr;
    require(data != nullptr, "data is NULL");
    const ModelOptions read = read_options(options);
    *model = open_model(NbFile::from_memory(data, size, "memory"), read);
  });
}

void ek_model_close(ek_model* model) {
  if (model == nullptr || !model->core->in_its_process()) return;
  guarded([&] { model->core->close(); });
  delete model;
}

ek_status ek_model_get_info(const ek_model* model, ek_model_info* info) {
  return guarded([&] {
    require(model != nullptr, "model is NULL");
    require(info != nullptr, "info is NULL");
    check_size(*info, "ek_model_info");
    const Model& core = *model->core;
    const Plan& plan = core.plan();
    info->n_threads = core.n_threads();
    info->n_ctx = core.n_ctx();
    info->n_vocab = plan.n_vocab;
    info->n_layers = plan.n_layers;
    info->hidden_size = plan.hidden_size;
    info->n_heads = plan.n_heads;
    info->n_kv_heads = plan.n_kv_heads;
    info->head_dim = plan.head_dim;
    info->parameter_bytes_per_token = plan.parameter_bytes_per_token;
    info->kv_bytes_per_token = core.kv_layout().bytes_per_token();
    info->file_bytes = core.file() != nullptr ? static_cast<int64_t>(core.file()->size()) : 0;
    info->workspace_bytes = core.workspace_bytes();
    info->isa = core.kernels().name;
    info->opt_version = core.file() != nullptr ? core.file()->opt_version().c_str() : "";
  });
}

ek_status ek_forward(ek_model* model, const ek_segment* segments, size_t n_segments, float* logits,
                     size_t n_logits) {
  return guarded([&] {
    require(model != nullptr, "model is NULL");
    require(segments != nullptr, "segments is NULL");
    require(n_segments >= 1, "n_segments is 0; a forward needs at least one");
    std::vector<Segment> rows;
    for (size_t i = 0; i < n_segments; ++i) {
      const ek_segment& s = segments[i];
      rows.push_back({s.session != nullptr ? s.session->session.get() : nullptr, s.ids, s.n_ids, s.logits});
    }
    const std::shared_ptr<Model> core = model->core;  // outlives a close during the call
    core->forward(rows, logits, logits != nullptr ? n_logits : 0);
  });
}

ek_status ek_sample(const float* logits, int64_t n_vocab, const ek_sampling* sampling, const int32_t* history,
                    int64_t n_history, uint64_t position, int32_t* token) {
  return guarded([&] {
    require(logits != nullptr, "logits is NULL");
    require(sampling != nullptr, "sampling is NULL");
    require(token != nullptr, "token is NULL");
    require(n_vocab >= 1 && n_vocab <= INT32_MAX,
            "n_vocab is " + std::to_string(n_vocab) + "; it must be 1 to 2^31 - 1");
    require(n_history >= 0, "n_history is " + std::to_string(n_history) + "; it must be 0 or more");
    require(history != nullptr || n_history == 0,
            "history is NULL with n_history " + std::to_string(n_history));
    *token = sample(logits, n_vocab, read_sampling(*sampling), history, n_history, position);
  });
}

ek_status ek_model_read_bandwidth(ek_model* model, double* bytes_per_second) {
  return guarded([&] {
    require(model != nullptr, "model is NULL");
    require(bytes_per_second != nullptr, "bytes_per_second is NULL");
    *bytes_per_second = model->core->read_bandwidth();
  });
}

ek_status ek_read_bandwidth(const void* data, size_t size, int32_t n_threads, double* bytes_per_second) {
  return guarded([&] {
    require(data != nullptr, "data is NULL");
    require(bytes_per_second != nullptr, "bytes_per_second is NULL");
    ThreadPool pool(resolve_threads(n_threads));
    const uint8_t* bytes = static_cast<const uint8_t*>(data);
    *bytes_per_second = read_bandwidth(find_read_loop(bytes, size, pool), bytes, size, pool);
  });
}

ek_status ek_multiply_peak(const char* isa, int32_t n_threads, double* operations_per_second) {
  return guarded([&] {
    require(operations_per_second != nullptr, "operations_per_second is NULL");
    const Kernels& kernels = choose_kernels(isa != nullptr ? isa : "");
    const MultiplyLoop* loop = find_multiply_loop(kernels.name);
    if (loop == nullptr) {
      throw Error(EK_ERR_NOT_SUPPORTED, std::string("kernel path ") + kernels.name +
                                          " has no loop that measures its multiplications");
    }
    ThreadPool pool(resolve_threads(n_threads));
    *operations_per_second = multiply_rate(*loop, pool);
  });
}

ek_status ek_model_profile_start(ek_model* model) {
  return guarded([&] {
    require(model != nullptr, "model is NULL");
    model->core->start_profile();
  });
}

ek_status ek_model_profile_take(ek_model* model, ek_profile_entry* entries, size_t capacity,
                                size_t* n_entries) {
  return guarded([&] {
    require(model != nullptr, "model is NULL");
    require(n_entries != nullptr, "n_entries is NULL");
    require(entries != nullptr || capacity == 0, "entries is NULL with capacity " + std::to_string(capacity));
    if (capacity > 0) check_size(entries[0], "ek_profile_entry");
    *n_entries = model->core->take_profile(entries, capacity);
  });
}

ek_status ek_model_profile_stop(ek_model* model) {
  return guarded([&] {
    require(model != nullptr, "model is NULL");
    model->core->stop_profile();
  });
}

const char* ek_isa_name(int32_t index) {
  const char* const* names = available_kernels();
  for (int32_t i = 0; i <= index && *names != nullptr; ++i, ++names) {
    if (i == index) return *names;
  }
  return nullptr;
}
