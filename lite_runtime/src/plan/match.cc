#include "plan/match.h"

#include <utility>

#include "plan/op_check.h"

namespace edge_kit {
namespace {

// Numbers of Paddle's VarType.
constexpr int64_t kPaddleInt64 = 3, kPaddleFloat32 = 5, kPaddleInt8 = 21;

// Each matcher takes the first op of its sequence, checks and claims the whole of it and adds the step it
// means; it reads like the ops it matches.
class Matcher {
 public:
  explicit Matcher(Graph& graph) : graph_(graph) {}

  Lowering run() {
    rotary_table();
    for (Node& node : graph_.nodes()) {
      if (!node.claimed) start_at(node);
    }
    for (const Node& node : graph_.nodes()) {
      if (!node.claimed) graph_.refuse_unknown(node);
    }
    return std::move(result_);
  }

 private:
  struct Heads {  // a value [heads, T, dim] that is a view of rows [T, heads * dim]
    ValueId rows;
    int64_t heads, dim;
  };

  void start_at(Node& node) {
    const std::string& type = node.op->type;
    const auto argument = [&](const char* name) { return OpCheck(graph_, &node).input(name); };
    const auto is_silu = [&](ValueId id) { return graph_.definition(id, "silu") != nullptr; };
    if (type == "gather") return embedding(node);
    if (type == "elementwise_add") return add(node);
    if (type == "reshape2" && rows_.count(argument("X")) > 0) return split_heads(node);
    if (type == "elementwise_mul") {
      if (argument("X") == argument("Y")) return rms_norm(node);
      if (is_silu(argument("X")) || is_silu(argument("Y"))) return silu_mul(node);
    }
    if (type == "matmul_v2") {
      if (weight_tensor(argument("Y")) != nullptr) return linear(node);
      if (graph_.definition(argument("Y"), "concat")) return attention(node);
    }  // others belong to a sequence that begins elsewhere
  }

  // positions -> cast -> [T, 1] -> times the inverse frequencies [1, D/2] -> twice side by side -> cos, sin
  void rotary_table() {
    ValueId x = program_input(kPositionsColumn, DataType::kInt64, {-1});
    x = cast(next(x, "cast"), kPaddleInt64);
    x = reshape(x, {-1, 1});
    OpCheck product = next(x, "matmul_v2");
    const Tensor* tensor = graph_.value(product.input("Y")).tensor;
    const int64_t half = tensor != nullptr && tensor->shape.size() == 2 ? tensor->shape[1] : 0;
    const float* inv_freq = product.floats("Y", {1, half});
    check_head_size(product, 2 * half);
    result_.inv_freq.assign(inv_freq, inv_freq + half);
    x = matmul(product, false);
    x = only_user(graph_, x, "concat").reads("X", {x, x}).integer("axis", -1).out();
    cos_ = one_of(x, "cos", 2).reads("X", {x}).out();
    sin_ = one_of(x, "sin", 2).reads("X", {x}).out();
  }

  // fp32: gather(table, ids). int8: cast(gather(table, ids)) * gather(scales [N, 1], ids)
  void embedding(Node& node) {
    const ValueId ids = program_input(kIdsColumn, DataType::kInt64, {-1});
    OpCheck gather(graph_, &node);
    if (result_.hidden_size != 0) gather.refuse("is a second embedding; expected one");
    const Tensor& table = gather.tensor("X");
    const bool is_int8 = table.type == DataType::kInt8;
    const DataType type = is_int8 ? DataType::kInt8 : DataType::kFloat32;
    if (table.shape.size() != 2 || !has_shape(table, type, table.shape)) {
      graph_.damaged(node, "table " + to_text(table) + "; expected int8 or float32 [N, K]");
    }
    EmbeddingStep step{table.data, nullptr, table.shape[0], table.shape[1], -1};
    ValueId x = gather.reads("Index", {ids}).integer("axis", 0).out();
    if (is_int8) {
      x = cast(next(x, "cast"), kPaddleInt8);
      OpCheck mul = next(x, "elementwise_mul");
      OpCheck gather_scale = source(mul, "Y", "gather");
      step.scale = gather_scale.floats("X", {step.n, 1});
      gather_scale.reads("Index", {ids}).integer("axis", 0).out();
      x = mul.elementwise().out();
    }
    step.output = x;
    result_.n_vocab = step.n;
    result_.hidden_size = step.k;
    emit(table.name, step, x, step.k);
  }

  // x * rsqrt(mean(x * x) + eps) * weight
  void rms_norm(Node& node) {
    OpCheck square(graph_, &node);
    const ValueId x = square.input("X");
    const int64_t k = row_width(square, x);
    ValueId y = square.reads("Y", {x}).elementwise().out();
    OpCheck mean = next(y, "reduce_mean");
    mean.ints("dim", {-1}).flag("keep_dim", true).flag("reduce_all", false);
    y = mean.integer("in_dtype", -1).integer("out_dtype", -1).out();
    OpCheck shift = next(y, "scale");
    const float eps = shift.flag("bias_after_scale", true).number("scale", 1.0f).number("bias");
    if (eps < 0) shift.refuse("bias is " + std::to_string(eps) + "; expected an epsilon of at least 0");
    y = shift.out();
    y = next(y, "rsqrt").out();
    y = only_user(graph_, y, "elementwise_mul").reads("X", {x}).reads("Y", {y}).elementwise().out();
    OpCheck weigh = next(y, "elementwise_mul");
    const float* weight = weigh.floats("Y", {k});
    y = weigh.elementwise().out();
    emit(weigh.tensor("Y").name, RmsNormStep{weight, eps, k, x, y}, y, k);
  }

  // x W^T (* scale) (+ bias)
  void linear(Node& node) {
    OpCheck product(graph_, &node);
    const ValueId x = product.input("X");
    const int64_t width = row_width(product, x);
    const Tensor& tensor = *weight_tensor(product.input("Y"));
    Weight w = weight(product, tensor);
    if (w.k != width) {
      product.refuse("weight " + tensor.name + " takes " + std::to_string(w.k) + " inputs; X has " +
                     std::to_string(width));
    }
    ValueId y = matmul(product, true);
    if (w.is_int8) {
      OpCheck mul = next(y, "elementwise_mul");
      w.scale = mul.floats("Y", {w.n});
      y = mul.elementwise().out();
    }
    if (adds_tensor(y)) {
      OpCheck add = next(y, "elementwise_add");
      w.bias = add.floats("Y", {w.n});
      y = add.elementwise().out();
    }
    emit(tensor.name, LinearStep{x, {w}, {tensor.name}, {y}}, y, w.n);
  }

  // W is fp32 [N, K], int8 [N, K] behind a cast, or int8 tiles [N/16, K/4, 16, 4] behind cast, transpose2 and
  // reshape2.
  Weight weight(OpCheck& product, const Tensor& tensor) {
    const bool tiled = tensor.shape.size() == 4, is_int8 = !graph_.is_constant(product.input("Y"));
    const bool known =
        tiled ? is_int8 && tensor.shape[2] == kTileN && tensor.shape[3] == kTileK : tensor.shape.size() == 2;
    if (!known || !has_shape(tensor, is_int8 ? DataType::kInt8 : DataType::kFloat32, tensor.shape)) {
      graph_.damaged(product.node(), "weight " + to_text(tensor) +
                                         "; expected float32 or int8 [N, K], or int8 [N/16, K/4, 16, 4]");
    }
    Weight w{tensor.data, nullptr, nullptr, tensor.shape[0], tensor.shape[1], WeightLayout::kRows, is_int8};
    if (tiled) {
      w.n *= kTileN, w.k *= kTileK;
      w.layout = WeightLayout::kTiles;
      OpCheck rows = source(product, "Y", "reshape2");
      OpCheck untile = source(rows, "X", "transpose2");
      rows.ints("shape", {w.n, w.k}).out();
      cast(source(untile, "X", "cast"), kPaddleInt8);
      untile.ints("axis", {0, 2, 1, 3}).out();
    } else if (is_int8) {
      cast(source(product, "Y", "cast"), kPaddleInt8);
    }
    return w;
  }

  // rows [T, heads * D] -> [T, heads, D] -> [heads, T, D], then rotated where slices follow
  void split_heads(Node& node) {
    OpCheck split(graph_, &node);
    const ValueId rows = split.input("X");
    const int64_t width = row_width(split, rows);
    const std::vector<int64_t>& shape = split.ints("shape");
    if (shape.size() != 3 || shape[0] != -1 || shape[1] < 1 || shape[1] > width || width % shape[1] != 0 ||
        shape[2] != width / shape[1]) {
      split.refuse("shape is " + to_text(shape) +
                   "; expected [-1, heads, size], heads * size = " + std::to_string(width));
    }
    const Heads heads{rows, shape[1], shape[2]};
    check_head_size(split, heads.dim);
    only_user(graph_, rows, "reshape2");  // the rows are rotated in place, so nothing else may read them
    ValueId x = transpose(split.out(), {1, 0, 2});
    if (!graph_.users(x, "slice").empty()) {
      x = rotate(split, x, heads.dim);
      result_.steps.push_back({step_name("rope", node), RopeStep{rows, heads.heads, heads.dim}});
    }
    rows_.erase(rows);
    heads_[x] = heads;
  }

  // x * cos + concat(-x[D/2:], x[:D/2]) * sin
  ValueId rotate(OpCheck& split, ValueId x, int64_t dim) {
    const int64_t half = static_cast<int64_t>(result_.inv_freq.size());
    if (dim != 2 * half) {
      split.refuse("the head size is " + std::to_string(dim) + "; expected the rotary table's " +
                   std::to_string(2 * half));
    }
    OpCheck by_cos = one_of(x, "elementwise_mul", 3);
    const std::vector<Node*> slices = graph_.users(x, "slice");
    if (slices.size() != 2) split.refuse("its heads are sliced once; expected twice");
    const ValueId first = slice(slices[0], x, 0, half), second = slice(slices[1], x, half, dim);
    const ValueId straight = by_cos.reads("X", {x}).reads("Y", {cos_}).elementwise().out();
    ValueId turned = multiply(second, -1.0f);
    turned = only_user(graph_, turned, "concat").reads("X", {turned, first}).integer("axis", -1).out();
    turned = next(turned, "elementwise_mul").reads("Y", {sin_}).elementwise().out();
    OpCheck sum = only_user(graph_, turned, "elementwise_add");
    return sum.reads("X", {straight}).reads("Y", {turned}).elementwise().out();
  }

  // softmax(q k^T * scale + mask) v; the query heads that share a key/value head are rows of one matrix
  void attention(Node& node) {
    OpCheck scores(graph_, &node);
    OpCheck fold = source(scores, "X", "reshape2");
    const Heads q = heads_of(fold, fold.input("X"));
    const Heads k = append_to_cache(scores, kPastColumn + 2 * result_.n_layers);
    const ValueId mask = program_input(kMaskColumn, DataType::kFloat32, {-1, -1});
    fold.ints("shape", {k.heads, -1, q.dim}).out();
    ValueId y = matmul(scores, true);
    OpCheck scaled = next(y, "scale");
    const float scale = scaled.flag("bias_after_scale", true).number("bias", 0.0f).number("scale");
    y = reshape(scaled.out(), {q.heads, -1, 0});
    y = next(y, "elementwise_add").reads("Y", {mask}).elementwise().out();
    y = next(y, "softmax").integer("axis", -1).out();
    y = reshape(y, {k.heads, -1, 0});
    OpCheck context = next(y, "matmul_v2");
    const Heads v = append_to_cache(context, kPastColumn + 2 * result_.n_layers + 1);
    y = matmul(context, false);
    y = reshape(y, {q.heads, -1, q.dim});
    y = transpose(y, {1, 0, 2});
    y = reshape(y, {-1, q.heads * q.dim});

    if (q.heads % k.heads != 0 || v.heads != k.heads || k.dim != q.dim || v.dim != q.dim) {
      scores.refuse("queries, keys and values have " + to_text({q.heads, k.heads, v.heads}) + " heads of " +
                    to_text({q.dim, k.dim, v.dim}) + "; expected one size and equally shared keys");
    }
    const bool first = result_.n_layers == 0;
    if (first) result_.n_heads = q.heads, result_.n_kv_heads = k.heads, result_.head_dim = q.dim;
    if (q.heads != result_.n_heads || k.heads != result_.n_kv_heads || q.dim != result_.head_dim) {
      scores.refuse("query heads, key heads and head size are " + to_text({q.heads, k.heads, q.dim}) +
                    "; expected those of the first layer: " +
                    to_text({result_.n_heads, result_.n_kv_heads, result_.head_dim}));
    }
    const int layer = static_cast<int>(result_.n_layers++);
    emit("attention of layer " + std::to_string(layer),
         AttentionStep{layer, q.rows, k.rows, v.rows, y, q.heads, k.heads, q.dim, scale}, y, q.heads * q.dim);
  }

  // Y of `product`: past keys or values [KV, P, D] from this column, then those of the new tokens
  Heads append_to_cache(OpCheck& product, int64_t column) {
    OpCheck concat = source(product, "Y", "concat");
    const std::vector<ValueId>& parts = concat.node().inputs["X"];
    if (parts.size() != 2) {
      concat.refuse("joins " + std::to_string(parts.size()) + " values; expected past and new ones");
    }
    const Heads heads = heads_of(concat, parts[1]);
    const ValueId past = program_input(column, DataType::kFloat32, {heads.heads, -1, heads.dim});
    result_.present.push_back(concat.reads("X", {past, parts[1]}).integer("axis", 1).out());
    return heads;
  }

  // silu(gate) * up
  void silu_mul(Node& node) {
    OpCheck mul(graph_, &node);
    const bool gate_first = graph_.definition(mul.input("X"), "silu") != nullptr;
    OpCheck silu = source(mul, gate_first ? "X" : "Y", "silu");
    const ValueId gate = silu.input("X"), up = mul.input(gate_first ? "Y" : "X");
    const int64_t width = same_width(mul, gate, up);
    silu.out();
    const ValueId y = mul.elementwise().out();
    emit(step_name("silu_mul", node), SiluMulStep{gate, up, y, width}, y, width);
  }

  // a + b
  void add(Node& node) {
    OpCheck sum(graph_, &node);
    const ValueId a = sum.input("X"), b = sum.input("Y");
    const int64_t width = same_width(sum, a, b);
    const ValueId y = sum.elementwise().out();
    emit(step_name("add", node), AddStep{a, b, y, width}, y, width);
  }

  // Single ops.

  ValueId cast(OpCheck check, int64_t from) {
    check.input("X");
    return check.integer("in_dtype", from).integer("out_dtype", kPaddleFloat32).out();
  }

  ValueId reshape(ValueId x, const std::vector<int64_t>& shape) {
    return next(x, "reshape2").ints("shape", shape).out();
  }

  ValueId transpose(ValueId x, const std::vector<int64_t>& axis) {
    return next(x, "transpose2").ints("axis", axis).out();
  }

  ValueId slice(Node* node, ValueId x, int64_t begin, int64_t end) {
    OpCheck check(graph_, node);
    return check.reads("Input", {x}).ints("axes", {2}).ints("starts", {begin}).ints("ends", {end}).out();
  }

  ValueId multiply(ValueId x, float factor) {
    return next(x, "scale").number("scale", factor).number("bias", 0.0f).flag("bias_after_scale", true).out();
  }

  ValueId matmul(OpCheck& check, bool trans_y) {  // the caller looks at what it reads
    check.input("X"), check.input("Y");
    return check.flag("trans_x", false).flag("trans_y", trans_y).out();
  }

  // Ways through the graph.

  // The only op that reads x, as its X.
  OpCheck next(ValueId x, const char* type) { return only_user(graph_, x, type).reads("X", {x}); }

  // The op that gives `reader` this parameter.
  OpCheck source(OpCheck& reader, const char* parameter, const char* type) {
    Node* node = graph_.definition(reader.input(parameter), type);
    if (node == nullptr) reader.refuse(std::string("input ") + parameter + " is not the output of a " + type);
    return OpCheck(graph_, node);
  }

  // The op of this type that reads x, which has `n_readers` readers in all.
  OpCheck one_of(ValueId x, const char* type, size_t n_readers) {
    const std::vector<Node*> found = graph_.users(x, type);
    const Value& value = graph_.value(x);
    if (found.size() != 1 || value.users.size() != n_readers) {
      graph_.refuse(graph_.nodes()[static_cast<size_t>(value.definition)],
                    "its output is read by " + std::to_string(value.users.size()) + " ops; expected " +
                        std::to_string(n_readers) + ", one of them a " + type);
    }
    return OpCheck(graph_, found[0]);
  }

  // An input of the program, declared with the type and shape (-1 = any size) that the engine gives it.
  ValueId program_input(int64_t column, DataType type, const std::vector<int64_t>& shape) {
    const ValueId id = graph_.feed(column);
    if (id < 0) graph_.refuse("the program has no input in column " + std::to_string(column));
    const std::string& name = graph_.value(id).name;
    DataType declared;
    std::vector<int64_t> dims;
    if (graph_.file().variable(name, &declared, &dims) && (declared != type || dims != shape)) {
      graph_.refuse("input '" + name + "' (column " + std::to_string(column) + ") is " + type_name(declared) +
                    " " + to_text(dims) + "; expected " + type_name(type) + " " + to_text(shape));
    }
    return id;
  }

  // The tensor that y stands for: itself, behind a cast, or behind cast, transpose2 and reshape2. Else null.
  const Tensor* weight_tensor(ValueId y) {
    for (const char* type : {"reshape2", "transpose2", "cast"}) {
      if (Node* node = graph_.definition(y, type)) y = OpCheck(graph_, node).input("X");
    }
    return graph_.value(y).tensor;
  }

  // Whether a tensor of the file is added to y: a bias, not the residual stream.
  bool adds_tensor(ValueId y) {
    for (Node* add : graph_.users(y, "elementwise_add")) {
      if (graph_.is_constant(OpCheck(graph_, add).input("Y"))) return true;
    }
    return false;
  }

  int64_t row_width(OpCheck& reader, ValueId id) {
    const auto found = rows_.find(id);
    if (found == rows_.end()) graph_.refuse_unlowered(reader.node(), id);
    return found->second;
  }

  int64_t same_width(OpCheck& reader, ValueId a, ValueId b) {
    const int64_t width = row_width(reader, a), other = row_width(reader, b);
    if (width != other) {
      reader.refuse("combines rows of " + std::to_string(width) + " and " + std::to_string(other) +
                    " values; expected equal widths");
    }
    return width;
  }

  Heads heads_of(OpCheck& reader, ValueId id) {
    const auto found = heads_.find(id);
    if (found == heads_.end()) graph_.refuse_unlowered(reader.node(), id);
    return found->second;
  }

  void check_head_size(const OpCheck& op, int64_t dim) {
    if (dim <= kMaxHeadDim && dim % 2 == 0) return;
    op.refuse("the head size is " + std::to_string(dim) + "; expected an even number up to " +
              std::to_string(kMaxHeadDim));
  }

  static std::string step_name(const char* what, const Node& node) {
    return std::string(what) + " at op " + std::to_string(node.index);
  }

  void emit(std::string name, decltype(Step::op) op, ValueId output, int64_t width) {
    result_.steps.push_back({std::move(name), std::move(op)});
    result_.widths[output] = rows_[output] = width;
  }

  Graph& graph_;
  Lowering result_;
  std::map<ValueId, int64_t> rows_;  // values [T, width] that further steps may read
  std::map<ValueId, Heads> heads_;
  ValueId cos_ = -1, sin_ = -1;  // [T, head_dim]
};

}  // namespace

Lowering lower(Graph& graph) { return Matcher(graph).run(); }

}  // namespace edge_kit
