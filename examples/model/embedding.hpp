// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One row of a table for every token. Tokens have no gradient, so the backward takes no `dx`; rows are added
// in the order of the tokens, which keeps the bits.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "belay/core/view.hpp"
#include "model/arithmetic.hpp"
#include "model/matrix.hpp"
#include "model/parameters.hpp"

namespace model {

template <class T>
class embedding {
 public:
  /// Keeps `out` (hidden numbers a token); the tokens are the caller's and live until the backward.
  struct residue {
    view<T, 3> out;
    view<const std::int32_t, 2> tokens;
  };

  embedding(std::string name, std::size_t vocabulary, std::size_t hidden)
      : table_(matrix_spec(std::move(name), {vocabulary, hidden})) {}

  [[nodiscard]] const char* name() const { return "embed_tokens"; }

  /// `tokens` [sequences, length], each at least 0 and below the vocabulary's size.
  template <class Frame>
  [[nodiscard]] residue forward(Frame& frame, view<const std::int32_t, 2> tokens) {
    const std::size_t hidden = table_.shape()[1];
    const residue saved{frame.template keep<T>(extents<3>{tokens.extent(0), tokens.extent(1), hidden}), tokens};
    frame.run([this, saved, hidden] {
      for (std::size_t i = 0; i < saved.tokens.size(); ++i) {
        std::copy_n(table_.value() + row(saved.tokens, i) * hidden, hidden, saved.out.data() + i * hidden);
      }
    });
    return saved;
  }

  template <class Frame>
  void backward(Frame& frame, residue&& r, view<const T, 3> dout) {
    const std::size_t hidden = table_.shape()[1];
    frame.run([this, tokens = r.tokens, dout, hidden] {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        add(table_.gradient() + row(tokens, i) * hidden, dout.data() + i * hidden, hidden);
      }
    });
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(table_);
  }

 private:
  [[nodiscard]] std::size_t row(view<const std::int32_t, 2> tokens, std::size_t i) const {
    const auto token = static_cast<std::size_t>(tokens.data()[i]);
    assert(token < table_.shape()[0]);
    return token;
  }

  belay::parameter<T> table_;
};

}  // namespace model
