// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A trainer as people write them without a framework: one file, flat arrays, a function for each layer and for its
// backward. A small transformer learns to predict bytes, on one rank. custom_trainer_belay.cpp is the same with Belay.
//   examples/run custom_trainer [STEPS] [FILE]
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t vocabulary = 256, length = 32, width = 32, heads = 2, inner = 4 * width, layers = 2;
constexpr std::size_t sequences = 2, rows = sequences * length, head_width = width / heads;
constexpr std::size_t micro_batches = 8;  // a step

// --- memory: everything of one kind is one array, and these point into it

struct block {
  float *norm1, *qkv, *projection, *norm2, *up, *down;
};
struct parameters {
  float *bytes, *positions;
  block blocks[layers];
  float *norm, *head;
};

constexpr std::size_t block_size = 2 * width + 3 * width * width + width * width + 2 * inner * width;
constexpr std::size_t parameter_count =
    vocabulary * width + length * width + layers * block_size + width + vocabulary * width;

parameters point_into(float* memory) {
  const auto next = [&](std::size_t size) { return std::exchange(memory, memory + size); };
  parameters p;
  p.bytes = next(vocabulary * width);
  p.positions = next(length * width);
  for (block& b : p.blocks) {
    b.norm1 = next(width);
    b.qkv = next(3 * width * width);
    b.projection = next(width * width);
    b.norm2 = next(width);
    b.up = next(inner * width);
    b.down = next(width * inner);
  }
  p.norm = next(width);
  p.head = next(vocabulary * width);
  return p;
}

// What a layer's forward keeps for its backward, and what flows between layers.
struct block_activations {
  float *in, *normed1, *qkv, *weights, *mixed, *middle, *normed2, *raised, *gated, *out;
};
struct activations {
  float* embedded;
  block_activations blocks[layers];
  float *normed, *logits;
};
constexpr std::size_t activation_count =
    rows * width + layers * (rows * (7 * width + 3 * width + 2 * inner) + sequences * heads * length * length) +
    rows * width + rows * vocabulary;

activations point_into_activations(float* memory) {
  const auto next = [&](std::size_t size) { return std::exchange(memory, memory + size); };
  activations a;
  a.embedded = next(rows * width);
  float* in = a.embedded;
  for (block_activations& b : a.blocks) {
    b.in = in;
    b.normed1 = next(rows * width);
    b.qkv = next(rows * 3 * width);
    b.weights = next(sequences * heads * length * length);
    b.mixed = next(rows * width);
    b.middle = next(rows * width);
    b.normed2 = next(rows * width);
    b.raised = next(rows * inner);
    b.gated = next(rows * inner);
    b.out = in = next(rows * width);
  }
  a.normed = next(rows * width);
  a.logits = next(rows * vocabulary);
  return a;
}

// --- layers

// out[r] = in[r] w^T, w is [outputs, inputs]; the backward adds to din and dw.
void matmul_forward(float* out, const float* in, const float* w, std::size_t outputs, std::size_t inputs) {
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < outputs; ++o) {
      float sum = 0;
      for (std::size_t i = 0; i < inputs; ++i) sum += in[r * inputs + i] * w[o * inputs + i];
      out[r * outputs + o] = sum;
    }
}
void matmul_backward(float* din, float* dw, const float* dout, const float* in, const float* w, std::size_t outputs,
                     std::size_t inputs) {
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < outputs; ++o) {
      const float d = dout[r * outputs + o];
      for (std::size_t i = 0; i < inputs; ++i) {
        din[r * inputs + i] += d * w[o * inputs + i];
        dw[o * inputs + i] += d * in[r * inputs + i];
      }
    }
}

// out = in / rms(in) * w, by rows.
void norm_forward(float* out, const float* in, const float* w) {
  for (std::size_t r = 0; r < rows; ++r) {
    const float* x = in + r * width;
    float squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[i] * x[i];
    const float scale = 1 / std::sqrt(squares / width + 1e-5F);
    for (std::size_t i = 0; i < width; ++i) out[r * width + i] = x[i] * scale * w[i];
  }
}
void norm_backward(float* din, float* dw, const float* dout, const float* in, const float* w) {
  for (std::size_t r = 0; r < rows; ++r) {
    const float *x = in + r * width, *d = dout + r * width;
    float squares = 0, dot = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[i] * x[i], dot += d[i] * w[i] * x[i];
    const float scale = 1 / std::sqrt(squares / width + 1e-5F);
    const float back = dot * scale * scale * scale / width;
    for (std::size_t i = 0; i < width; ++i) {
      din[r * width + i] += d[i] * w[i] * scale - x[i] * back;
      dw[i] += d[i] * x[i] * scale;
    }
  }
}

// Causal attention: qkv is [rows, 3, heads, head_width], weights are [sequences, heads, length, length].
void attention_forward(float* out, float* weights, const float* qkv) {
  const float scale = 1 / std::sqrt(float(head_width));
  for (std::size_t s = 0; s < sequences; ++s)
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t t = 0; t < length; ++t) {
        const auto at = [&](std::size_t row, std::size_t which) {
          return qkv + ((s * length + row) * 3 + which) * width + h * head_width;
        };
        float* const w = weights + ((s * heads + h) * length + t) * length;
        float largest = -1e30F, total = 0;
        for (std::size_t u = 0; u <= t; ++u) {
          w[u] = 0;
          for (std::size_t i = 0; i < head_width; ++i) w[u] += at(t, 0)[i] * at(u, 1)[i] * scale;
          largest = std::max(largest, w[u]);
        }
        for (std::size_t u = 0; u <= t; ++u) total += w[u] = std::exp(w[u] - largest);
        float* const y = out + (s * length + t) * width + h * head_width;
        std::fill(y, y + head_width, 0.0F);
        for (std::size_t u = 0; u <= t; ++u) {
          w[u] /= total;
          for (std::size_t i = 0; i < head_width; ++i) y[i] += w[u] * at(u, 2)[i];
        }
      }
}
void attention_backward(float* dqkv, const float* dout, const float* weights, const float* qkv) {
  const float scale = 1 / std::sqrt(float(head_width));
  for (std::size_t s = 0; s < sequences; ++s)
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t t = 0; t < length; ++t) {
        const auto place = [&](std::size_t row, std::size_t which) {
          return ((s * length + row) * 3 + which) * width + h * head_width;
        };
        const float* const w = weights + ((s * heads + h) * length + t) * length;
        const float* const dy = dout + (s * length + t) * width + h * head_width;
        float dw[length], mean = 0;
        for (std::size_t u = 0; u <= t; ++u) {
          dw[u] = 0;
          for (std::size_t i = 0; i < head_width; ++i) {
            dw[u] += dy[i] * qkv[place(u, 2) + i];
            dqkv[place(u, 2) + i] += w[u] * dy[i];
          }
          mean += w[u] * dw[u];
        }
        for (std::size_t u = 0; u <= t; ++u) {
          const float d = w[u] * (dw[u] - mean) * scale;
          for (std::size_t i = 0; i < head_width; ++i) {
            dqkv[place(t, 0) + i] += d * qkv[place(u, 1) + i];
            dqkv[place(u, 1) + i] += d * qkv[place(t, 0) + i];
          }
        }
      }
}

// --- a block, and the network

void block_forward(const block& p, const block_activations& a) {
  norm_forward(a.normed1, a.in, p.norm1);
  matmul_forward(a.qkv, a.normed1, p.qkv, 3 * width, width);
  attention_forward(a.mixed, a.weights, a.qkv);
  matmul_forward(a.middle, a.mixed, p.projection, width, width);
  for (std::size_t i = 0; i < rows * width; ++i) a.middle[i] += a.in[i];
  norm_forward(a.normed2, a.middle, p.norm2);
  matmul_forward(a.raised, a.normed2, p.up, inner, width);
  for (std::size_t i = 0; i < rows * inner; ++i) a.gated[i] = a.raised[i] > 0 ? a.raised[i] * a.raised[i] : 0;
  matmul_forward(a.out, a.gated, p.down, width, inner);
  for (std::size_t i = 0; i < rows * width; ++i) a.out[i] += a.middle[i];
}
// `d` has the gradients of what `a` has; those of d.out are there, the others are zero.
void block_backward(const block& p, const block& g, const block_activations& a, const block_activations& d) {
  matmul_backward(d.gated, g.down, d.out, a.gated, p.down, width, inner);
  for (std::size_t i = 0; i < rows * inner; ++i) d.raised[i] = a.raised[i] > 0 ? 2 * a.raised[i] * d.gated[i] : 0;
  matmul_backward(d.normed2, g.up, d.raised, a.normed2, p.up, inner, width);
  for (std::size_t i = 0; i < rows * width; ++i) d.middle[i] += d.out[i];
  norm_backward(d.middle, g.norm2, d.normed2, a.middle, p.norm2);
  matmul_backward(d.mixed, g.projection, d.middle, a.mixed, p.projection, width, width);
  attention_backward(d.qkv, d.mixed, a.weights, a.qkv);
  matmul_backward(d.normed1, g.qkv, d.qkv, a.normed1, p.qkv, 3 * width, width);
  for (std::size_t i = 0; i < rows * width; ++i) d.in[i] += d.middle[i];
  norm_backward(d.in, g.norm1, d.normed1, a.in, p.norm1);
}

void forward(const parameters& p, const activations& a, const std::vector<int>& tokens) {
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < width; ++i)
      a.embedded[r * width + i] = p.bytes[std::size_t(tokens[r]) * width + i] + p.positions[r % length * width + i];
  for (std::size_t l = 0; l < layers; ++l) {
    block_forward(p.blocks[l], a.blocks[l]);
  }
  norm_forward(a.normed, a.blocks[layers - 1].out, p.norm);
  matmul_forward(a.logits, a.normed, p.head, vocabulary, width);
}

// Cross-entropy summed over the rows, and its gradient.
double loss_of(const activations& a, const activations& d, const std::vector<int>& targets) {
  double loss = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const float* const x = a.logits + r * vocabulary;
    const float largest = *std::max_element(x, x + vocabulary);
    double total = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) total += std::exp(double(x[v] - largest));
    loss += std::log(total) - double(x[targets[r]] - largest);
    for (std::size_t v = 0; v < vocabulary; ++v)
      d.logits[r * vocabulary + v] = float(std::exp(double(x[v] - largest)) / total) - (int(v) == targets[r] ? 1 : 0);
  }
  return loss;
}

void backward(const parameters& p, const parameters& g, const activations& a, const activations& d,
              const std::vector<int>& tokens) {
  matmul_backward(d.normed, g.head, d.logits, a.normed, p.head, vocabulary, width);
  norm_backward(d.blocks[layers - 1].out, g.norm, d.normed, a.blocks[layers - 1].out, p.norm);
  for (std::size_t l = layers; l-- > 0;) {
    block_backward(p.blocks[l], g.blocks[l], a.blocks[l], d.blocks[l]);
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < width; ++i) {
      g.bytes[std::size_t(tokens[r]) * width + i] += d.embedded[r * width + i];
      g.positions[r % length * width + i] += d.embedded[r * width + i];
    }
}

// --- training

struct memory {
  std::vector<float> values = std::vector<float>(parameter_count), gradients = values, first = values, second = values;
  std::vector<float> kept = std::vector<float>(activation_count), back = kept;
};

void initialise(std::vector<float>& values) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.08F);
  for (float& x : values) x = normal(random);
  const parameters p = point_into(values.data());
  for (const block& b : p.blocks) std::fill_n(b.norm1, width, 1.0F), std::fill_n(b.norm2, width, 1.0F);
  std::fill_n(p.norm, width, 1.0F);
}

void read_batch(const std::string& text, std::size_t number, std::vector<int>& tokens, std::vector<int>& targets) {
  for (std::size_t s = 0; s < sequences; ++s) {
    const std::size_t begin = (number * sequences + s) * 7919 % (text.size() - length);
    for (std::size_t t = 0; t < length; ++t) {
      tokens[s * length + t] = static_cast<unsigned char>(text[begin + t]);
      targets[s * length + t] = static_cast<unsigned char>(text[begin + t + 1]);
    }
  }
}

void adamw(memory& all, std::size_t step, float scale, float rate) {
  const float correct1 = 1 - std::pow(0.9F, float(step)), correct2 = 1 - std::pow(0.95F, float(step));
  for (std::size_t i = 0; i < parameter_count; ++i) {
    const float g = all.gradients[i] * scale;
    all.first[i] = 0.9F * all.first[i] + 0.1F * g;
    all.second[i] = 0.95F * all.second[i] + 0.05F * g * g;
    all.values[i] -= rate * (all.first[i] / correct1) / (std::sqrt(all.second[i] / correct2) + 1e-8F);
  }
}

void train(std::size_t steps, const std::string& text) {
  const auto all = std::make_shared<memory>();
  initialise(all->values);
  const parameters p = point_into(all->values.data()), g = point_into(all->gradients.data());
  const activations a = point_into_activations(all->kept.data()), d = point_into_activations(all->back.data());
  std::vector<int> tokens(rows), targets(rows);
  for (std::size_t number = 1; number <= steps; ++number) {
    std::fill(all->gradients.begin(), all->gradients.end(), 0.0F);
    double loss = 0;
    for (std::size_t m = 0; m < micro_batches; ++m) {
      read_batch(text, number * micro_batches + m, tokens, targets);
      std::fill(all->back.begin(), all->back.end(), 0.0F);
      forward(p, a, tokens);
      loss += loss_of(a, d, targets);
      backward(p, g, a, d, tokens);
    }
    const double mean = loss / double(micro_batches * rows);
    std::printf("step %zu  loss %.6f\n", number, mean);
    adamw(*all, number, 1 / float(micro_batches * rows), 3e-3F);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 20;
  const std::string path = argc > 2 ? argv[2] : BELAY_SOURCE_DIR "/README.md";
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.size() <= length) throw std::runtime_error(path + ": cannot be read, or is too short");
  train(steps, text);
} catch (const std::exception& error) {
  std::fprintf(stderr, "custom_trainer: %s\n", error.what());
  return 1;
}
