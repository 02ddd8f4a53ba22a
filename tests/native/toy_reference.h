// What a plan computes, the plain way: one text, all positions, double precision, no cache, no blocks.
#pragma once

#include <cmath>
#include <cstdint>
#include <variant>
#include <vector>

#include "plan/plan.h"

namespace edge_kit_test {

using namespace edge_kit;

using Matrix = std::vector<std::vector<double>>;  // [rows, width]

inline double weight_at(const Weight& w, int64_t n, int64_t k) {
  const int64_t tile = (n / kTileN * (w.k / kTileK) + k / kTileK) * kTileN * kTileK;
  const int64_t at = w.layout == WeightLayout::kRows ? n * w.k + k : tile + n % kTileN * kTileK + k % kTileK;
  return static_cast<const int8_t*>(w.data)[at];
}

inline Matrix multiply(const Matrix& x, const Weight& w) {
  Matrix y(x.size(), std::vector<double>(static_cast<size_t>(w.n)));
  for (size_t r = 0; r < x.size(); ++r) {
    for (int64_t n = 0; n < w.n; ++n) {
      double sum = 0.0;
      for (int64_t k = 0; k < w.k; ++k) sum += x[r][static_cast<size_t>(k)] * weight_at(w, n, k);
      y[r][static_cast<size_t>(n)] = sum * w.scale[n] + (w.bias != nullptr ? w.bias[n] : 0.0f);
    }
  }
  return y;
}

inline Matrix attend(const Matrix& q, const Matrix& k, const Matrix& v, const AttentionStep& step) {
  Matrix out(q.size(), std::vector<double>(q[0].size(), 0.0));
  for (size_t row = 0; row < q.size(); ++row) {
    for (int64_t head = 0; head < step.n_heads; ++head) {
      const size_t at = static_cast<size_t>(head * step.head_dim);
      const size_t kv_at = static_cast<size_t>(head / (step.n_heads / step.n_kv_heads) * step.head_dim);
      std::vector<double> p(row + 1);
      double sum = 0.0;
      for (size_t j = 0; j <= row; ++j) {
        double score = 0.0;
        for (size_t d = 0; d < static_cast<size_t>(step.head_dim); ++d)
          score += q[row][at + d] * k[j][kv_at + d];
        p[j] = std::exp(score * step.scale);
        sum += p[j];
      }
      for (size_t j = 0; j <= row; ++j) {
        for (size_t d = 0; d < static_cast<size_t>(step.head_dim); ++d)
          out[row][at + d] += p[j] / sum * v[j][kv_at + d];
      }
    }
  }
  return out;
}

inline void turn(Matrix& x, const RopeStep& step, const std::vector<float>& inv_freq) {
  const size_t half = inv_freq.size();
  for (size_t row = 0; row < x.size(); ++row) {
    for (size_t at = 0; at < static_cast<size_t>(step.heads * step.dim); at += 2 * half) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(row) * inv_freq[i], a = x[row][at + i],
                     b = x[row][at + half + i];
        x[row][at + i] = a * std::cos(angle) - b * std::sin(angle);
        x[row][at + half + i] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
}

inline std::vector<float> plain_logits(const Plan& plan, const std::vector<int32_t>& ids) {
  const size_t rows = ids.size();
  std::vector<Matrix> buffers(plan.buffer_widths.size());
  const auto buffer = [&](int index) -> Matrix& { return buffers[static_cast<size_t>(index)]; };
  for (const Step& step : plan.steps) {
    if (const auto* s = std::get_if<EmbeddingStep>(&step.op)) {
      Matrix& y = buffer(s->output);
      y.assign(rows, std::vector<double>(static_cast<size_t>(s->k)));
      for (size_t r = 0; r < rows; ++r) {
        const int8_t* row = static_cast<const int8_t*>(s->table) + ids[r] * s->k;
        for (int64_t i = 0; i < s->k; ++i)
          y[r][static_cast<size_t>(i)] = static_cast<double>(row[i]) * s->scale[ids[r]];
      }
    } else if (const auto* s = std::get_if<RmsNormStep>(&step.op)) {
      Matrix y = buffer(s->input);
      for (std::vector<double>& row : y) {
        double squares = 0.0;
        for (double value : row) squares += value * value;
        const double root = std::sqrt(squares / static_cast<double>(s->k) + s->eps);
        for (size_t i = 0; i < row.size(); ++i) row[i] = row[i] / root * s->weight[i];
      }
      buffer(s->output) = y;
    } else if (const auto* s = std::get_if<LinearStep>(&step.op)) {
      for (size_t i = 0; i < s->weights.size(); ++i)
        buffer(s->outputs[i]) = multiply(buffer(s->input), s->weights[i]);
    } else if (const auto* s = std::get_if<RopeStep>(&step.op)) {
      turn(buffer(s->value), *s, plan.inv_freq);
    } else if (const auto* s = std::get_if<AttentionStep>(&step.op)) {
      buffer(s->output) = attend(buffer(s->q), buffer(s->k), buffer(s->v), *s);
    } else if (const auto* s = std::get_if<SiluMulStep>(&step.op)) {
      Matrix& gate = buffer(s->gate);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t i = 0; i < gate[r].size(); ++i)
          gate[r][i] *= buffer(s->up)[r][i] / (1.0 + std::exp(-gate[r][i]));
      }
    } else if (const auto* s = std::get_if<AddStep>(&step.op)) {
      for (size_t r = 0; r < rows; ++r) {
        for (size_t i = 0; i < buffer(s->a)[r].size(); ++i) buffer(s->a)[r][i] += buffer(s->b)[r][i];
      }
    }
  }
  std::vector<float> logits;
  for (const std::vector<double>& row : buffer(plan.logits))
    logits.insert(logits.end(), row.begin(), row.end());
  return logits;
}

}  // namespace edge_kit_test
