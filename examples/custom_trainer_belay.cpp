// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// custom_trainer.cpp with Belay: ranks divide the micro-batches and the optimizer's state.
//   custom_trainer_belay [STEPS] [FILE] [RANKS] [threads|processes], or under belay-run, torchrun, mpirun
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

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/belay.hpp"

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

// The parameters by name, and what forwards owe.
struct handles {
  belay::parameter_list<float> list;
  belay::handle_store<belay::owed> embedding{1}, blocks{layers}, head{1};
};

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

void forward(const auto& scope, handles& owed, const parameters& p, const activations& a,
             const std::vector<int>& tokens) {
  owed.embedding.keep(0, belay::owe(scope, "embedding", {owed.list[0], owed.list[1]}));
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < width; ++i)
      a.embedded[r * width + i] = p.bytes[std::size_t(tokens[r]) * width + i] + p.positions[r % length * width + i];
  for (std::size_t l = 0; l < layers; ++l) {
    const auto of = [&](std::size_t number) -> auto& { return owed.list[2 + 6 * l + number]; };
    owed.blocks.keep(l, belay::owe(scope, {"block", l}, {of(0), of(1), of(2), of(3), of(4), of(5)}));
    block_forward(p.blocks[l], a.blocks[l]);
  }
  owed.head.keep(0, belay::owe(scope, "head", {owed.list[2 + 6 * layers], owed.list[3 + 6 * layers]}));
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

void backward(handles& owed, const parameters& p, const parameters& g, const activations& a, const activations& d,
              const std::vector<int>& tokens) {
  matmul_backward(d.normed, g.head, d.logits, a.normed, p.head, vocabulary, width);
  norm_backward(d.blocks[layers - 1].out, g.norm, d.normed, a.blocks[layers - 1].out, p.norm);
  owed.head.take(0).discharge();
  for (std::size_t l = layers; l-- > 0;) {
    block_backward(p.blocks[l], g.blocks[l], a.blocks[l], d.blocks[l]);
    owed.blocks.take(l).discharge();  // its gradients are reduced from here on, beside the rest of the backward
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < width; ++i) {
      g.bytes[std::size_t(tokens[r]) * width + i] += d.embedded[r * width + i];
      g.positions[r % length * width + i] += d.embedded[r * width + i];
    }
  owed.embedding.take(0).discharge();
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

void train(belay::rank& rank, belay::run& run, std::size_t steps, const std::string& text) {
  const auto all = std::make_shared<memory>();
  run.keep(all);  // peers may still read gradients when a failure ends this function
  initialise(all->values);
  const parameters p = point_into(all->values.data()), g = point_into(all->gradients.data());
  const activations a = point_into_activations(all->kept.data()), d = point_into_activations(all->back.data());
  std::vector<int> tokens(rows), targets(rows);
  handles owed{{all->values, all->gradients}};
  auto& list = owed.list;
  list.add("bytes", {vocabulary, width}), list.add("positions", {length, width});
  for (std::size_t l = 0; l < layers; ++l) {
    const std::string of = std::to_string(l) + ".";
    list.add(of + "norm1", {width}), list.add(of + "qkv", {3 * width, width});
    list.add(of + "projection", {width, width}), list.add(of + "norm2", {width});
    list.add(of + "up", {inner, width}), list.add(of + "down", {width, inner});
  }
  list.add("norm", {width}), list.add("head", {vocabulary, width});
  belay::mesh mesh{rank, {.data = rank.size()}};
  belay::parameter_store store{run, mesh, list, belay::zero<1>{}, belay::store_options{.bucket_bytes = 32768}};
  belay::adamw optimizer{store, {.decay = 0}};
  const auto mine = belay::even_part(micro_batches, std::size_t(rank.size()), std::size_t(rank.number()));
  for (auto number : run.steps(steps)) {
    double loss = 0;
    belay::step step{run.engine(), store};
    step.micro_batches(mine.count);
    for (std::size_t m = mine.first; m < mine.first + mine.count; ++m) {
      read_batch(text, number * micro_batches + m, tokens, targets);
      std::fill(all->back.begin(), all->back.end(), 0.0F);
      forward(step.micro_batch(m - mine.first), owed, p, a, tokens);
      loss += loss_of(a, d, targets);
      backward(owed, p, g, a, d, tokens);
    }
    run.engine().add_loss(loss);
    auto outcome = std::move(step).commit(mesh, belay::target_tokens{micro_batches * rows});
    if (auto* ok = belay::committed(outcome)) {
      run.report(*ok, [&](double mean) { std::printf("step %zu  loss %.6f\n", number, mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 3e-3});
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 20;
  const std::string path = argc > 2 ? argv[2] : BELAY_SOURCE_DIR "/README.md";
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.size() <= length) throw std::runtime_error(path + ": cannot be read, or is too short");
  const auto body = [&](belay::rank& rank, belay::run& run) { train(rank, run, steps, text); };
  const int ranks = argc > 3 ? std::atoi(argv[3]) : 1;
  const bool forked = argc > 4 && argv[4] == std::string("processes"), launched = belay::find_launcher().size > 1;
  const belay::launch_options how{.explain_faults = belay::fault_explanation::by_handler};
  if (launched) return belay::launch(belay::host::world::from_env(), body, how), 0;
  forked ? belay::launch(belay::host::processes{ranks}, body, how)
         : belay::launch(belay::host::world{ranks}, body, how);
} catch (const std::exception& error) {
  std::fprintf(stderr, "custom_trainer_belay: %s\n", error.what());
  return 1;
}
