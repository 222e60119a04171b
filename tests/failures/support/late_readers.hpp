// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Layers that read what they were lent after it was given back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/belay.hpp"

namespace late_readers {

using matrix = belay::view<const float, 2>;

enum class reads : std::uint8_t { anew, what_the_forward_read };

constexpr std::size_t widths[] = {128, 96, 160, 64, 224, 80, 128}, width = 128, batch = 8, depth = 6;

// y = x w^T. Its backward reads the weight of the forward where it is said.
struct linear {
  belay::parameter<float> weight;
  reads how;
  linear(std::size_t n, reads from)
      : weight({"w" + std::to_string(n), {widths[n + 1], widths[n]}, belay::initial::normal(0.1)}), how(from) {}
  [[nodiscard]] static const char* name() { return "linear"; }
  void for_each_parameter(auto&& visit) { visit(weight); }
  struct residue {
    belay::view<float, 2> out;
    matrix x, w;
  };
  residue forward(auto& frame, matrix x) {
    const auto y = belay::keep<float>(frame, {x.extent(0), weight.extent(0)});
    const matrix w = frame.read(weight);
    frame.product(y, x, belay::transposed(w));
    return {y, x, w};
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    frame.product(frame.add_to(weight), belay::transposed(dy), r.x);
    frame.product(dx, dy, how == reads::anew ? matrix(frame.read(weight)) : r.w);
  }
};
struct network {
  std::vector<linear> all;
  explicit network(reads how) {
    for (std::size_t i = 0; i < depth; ++i) all.emplace_back(i, how);
  }
  void for_each_parameter(auto&& visit) {
    for (auto& l : all) l.for_each_parameter(visit);
  }
};

// Keeps a pointer to what a call of it had, of each lifetime.
struct forgets {
  const float* scratch = nullptr;
  const float* kept = nullptr;
  const belay::bf16* narrow = nullptr;
  const std::int32_t* index = nullptr;
  struct residue {
    belay::view<float, 2> out;
  };
  [[nodiscard]] static const char* name() { return "forgets"; }
  residue forward(auto& frame, matrix x) {
    const auto y = belay::keep<float>(frame, x.shape()), beside = belay::keep<float>(frame, x.shape());
    const auto s = belay::scratch<float>(frame, x.shape());
    const auto n = belay::scratch<belay::bf16>(frame, x.shape());
    const auto i = belay::scratch<std::int32_t>(frame, x.shape());
    scratch = s.data(), kept = beside.data(), narrow = n.data(), index = i.data();
    frame.run([=, count = x.size()] {
      for (std::size_t e = 0; e < count; ++e) y.data()[e] = beside.data()[e] = s.data()[e] = 1, i.data()[e] = 1;
    });
    return {y};
  }
  void backward(auto&, residue&&, matrix, belay::view<float, 2>) {}
};

// y = 2 x, of the first rows; its backward reads all of its input.
struct doubled {
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };
  belay::parameter<float> weight;
  [[nodiscard]] static const char* name() { return "doubled"; }
  void for_each_parameter(auto&& visit) { visit(weight); }
  std::size_t part = 1;  // of the rows
  explicit doubled(const std::string& called, std::size_t of_rows = 1)
      : weight({called, {width}, belay::initial::constant(1)}), part(of_rows) {}
  residue forward(auto& frame, matrix x) {
    const auto y = belay::keep<float>(frame, {x.extent(0) / part, x.extent(1)});
    frame.each(y.size(), belay::kernel::multiple<float>{2, x.data(), y.data()});
    return {y, x};
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    float* const dw = frame.add_to(weight).data();
    frame.run([=, x = r.x] {
      for (std::size_t i = 0; i < x.size(); ++i) {
        dw[i % width] += x.data()[i] * dy.data()[i % dy.size()];
        dx.data()[i] = i < dy.size() ? 2 * dy.data()[i] : 0;
      }
    });
  }
};
struct four {
  doubled a{"a"}, b{"b", 4}, c{"c"}, d{"d"};
  void for_each_parameter(auto&& visit) {
    for (doubled* each : {&a, &b, &c, &d}) visit(each->weight);
  }
};
}  // namespace late_readers
