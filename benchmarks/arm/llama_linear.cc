// One Q8_0 matrix product of llama.cpp's CPU back end, as often as asked, with one thread.
//
//   llama_linear ROWS N K REPETITIONS
// The weights lie in the first of the back end's buffer types that takes them, as llama.cpp places a model's:
// its repacked layout where the CPU has one for Q8_0. Prints the name of that buffer type.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace {

ggml_tensor* product(ggml_context* context, int64_t rows, int64_t n, int64_t k) {
  ggml_tensor* w = ggml_new_tensor_2d(context, GGML_TYPE_Q8_0, k, n);
  return ggml_mul_mat(context, w, ggml_new_tensor_2d(context, GGML_TYPE_F32, k, rows));
}

// Where the weights go. The device is asked with the operation whose weights lie in a buffer of that type.
ggml_backend_buffer_type_t weight_buffer_type(ggml_backend_dev_t device, int64_t rows, int64_t n, int64_t k) {
  using ExtraTypes = ggml_backend_buffer_type_t* (*)(ggml_backend_dev_t);
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
  const auto extra_types = reinterpret_cast<ExtraTypes>(
      ggml_backend_reg_get_proc_address(registry, "ggml_backend_dev_get_extra_bufts"));
  ggml_backend_buffer_type_t found = nullptr;
  for (auto* type = extra_types ? extra_types(device) : nullptr; type && *type && !found; ++type) {
    ggml_context* context = ggml_init({16 * ggml_tensor_overhead(), nullptr, true});
    ggml_tensor* y = product(context, rows, n, k);
    y->src[0]->buffer = ggml_backend_buft_alloc_buffer(*type, 0);
    if (ggml_backend_dev_supports_op(device, y)) found = *type;
    ggml_backend_buffer_free(y->src[0]->buffer);
    ggml_free(context);
  }
  return found ? found : ggml_backend_cpu_buffer_type();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int64_t rows = std::atoi(argv[1]), n = std::atoi(argv[2]), k = std::atoi(argv[3]);
  ggml_backend_t backend = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(backend, 1);
  const auto type = weight_buffer_type(ggml_backend_get_device(backend), rows, n, k);

  ggml_context* context = ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true});
  ggml_tensor* y = product(context, rows, n, k);
  ggml_tensor *w = y->src[0], *x = y->src[1];
  ggml_cgraph* graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, y);
  const size_t weight_bytes = ggml_backend_buft_get_alloc_size(type, w);
  ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(type, weight_bytes);
  ggml_backend_tensor_alloc(buffer, w, ggml_backend_buffer_get_base(buffer));
  ggml_backend_alloc_ctx_tensors(context, backend);  // the others

  std::vector<float> values(static_cast<size_t>(rows * k));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 31 % 255) - 127.0f;
  ggml_backend_tensor_set(x, values.data(), 0, values.size() * sizeof(float));
  std::vector<char> quantized(ggml_nbytes(w));  // the same weights for every output
  const size_t row_bytes = quantized.size() / static_cast<size_t>(n);
  ggml_quantize_chunk(GGML_TYPE_Q8_0, values.data(), quantized.data(), 0, 1, k, nullptr);
  for (size_t at = row_bytes; at < quantized.size(); at += row_bytes) {
    std::memcpy(quantized.data() + at, quantized.data(), row_bytes);
  }
  ggml_backend_tensor_set(w, quantized.data(), 0, quantized.size());

  for (int i = std::atoi(argv[4]); i > 0; --i) {
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) return 3;
  }
  std::printf("%s\n", ggml_backend_buft_name(type));
  return 0;
}
