// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One row of a table for every token. Tokens have no gradient, so the backward takes no `dx`; rows are added
// in the order of the tokens, which keeps the bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "belay/kernel/rows.hpp"
#include "belay/step/frame.hpp"
#include "model/parameters.hpp"
#include "model/shapes.hpp"

namespace model {

/// A frozen one has no backward: it is observed.
template <class T, belay::learning Learning = belay::trainable>
class embedding {
 public:
  using learning_type = Learning;
  using number = compute_type_t<T>;

  /// Keeps `out` (hidden numbers a token); the tokens are the caller's and live until the backward.
  using output_in_backward = belay::unread;
  struct residue {
    view<number, 3> out;
    view<const std::int32_t, 2> tokens;
  };

  embedding(std::string name, std::size_t vocabulary, std::size_t hidden)
      : table_(matrix_spec(std::move(name), {vocabulary, hidden})) {}

  [[nodiscard]] const char* name() const { return "embed_tokens"; }

  /// `tokens` [sequences, length], each at least 0 and below the vocabulary's size.
  [[nodiscard]] residue forward(auto& frame, view<const std::int32_t, 2> tokens) {
    const std::size_t hidden = table_.shape()[1];
    const residue saved{keep<number>(frame, {tokens.extent(0), tokens.extent(1), hidden}), tokens};
    frame.teams(tokens.size(),
                kernel::gather_rows<T, std::int32_t, number>{frame.read(table_).data(), tokens.data(), saved.out.data(),
                                                             hidden, 1, table_.shape()[0], frame.found()});
    return saved;
  }

  void backward(auto& frame, residue&& r, view<const number, 3> dout) requires belay::has_gradient<Learning> {
    frame.rows_into(
        frame.add_to(table_),
        [](number* sums, view<const number, 3> rows, view<const std::int32_t, 2> tokens, std::size_t vocabulary) {
          return kernel::accumulate_rows<number, std::int32_t>{rows.data(), tokens.data(),  tokens.size(),
                                                               sums,        rows.extent(2), vocabulary};
        },
        dout, r.tokens, table_.shape()[0]);
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(table_);
  }

 private:
  belay::parameter<T, belay::replicate, Learning> table_;
};

}  // namespace model
