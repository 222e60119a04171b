// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One layer of the decoder: attention, then experts, each with its norm before and its residual around it. What goes
// around them is numbers, from the first layer to the last: it would lose a little with every sum if it were rounded.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "belay/step/frame.hpp"
#include "belay/step/recompute.hpp"
#include "model/attention_block.hpp"
#include "model/learning.hpp"
#include "model/moe_block.hpp"
#include "model/shapes.hpp"

namespace model {

template <class T, class Exchange, class Parts = trains_all>
class decoder_layer {
  using attention_type = attention_block<T, typename Parts::attention>;
  using experts_type = moe_block<T, Exchange, typename Parts::experts>;

 public:
  using number = compute_type_t<T>;

  /// Keeps, where the attention is not recomputed, in numbers per token: (4 + 2 kv/heads) x hidden + heads + 2 for the
  /// attention and both outputs (where heads x head size = hidden), and the routing. For every row of the experts'
  /// capacity it keeps 2 x expert width.
  using output_in_backward = belay::unread;
  struct residue {
    view<number, 3> out;
    belay::part_residue<view<const number, 3>, typename attention_type::residue> attention;
    typename experts_type::residue experts;
  };

  decoder_layer(std::size_t index, attention_shape heads, moe_shape mixture, double epsilon, const rotary<T>& positions,
                expert_range local, Exchange& exchange)
      : index_(index),
        name_("model.layers." + std::to_string(index)),
        attention_(name_, heads, epsilon, positions),
        experts_(name_, mixture, epsilon, local, exchange) {}

  [[nodiscard]] const char* name() const { return name_.c_str(); }
  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] experts_type& experts() { return experts_; }
  /// Whether the attention keeps its output alone, and is computed again in the backward.
  void recompute_attention(belay::recomputes how) { attended_.recompute(how); }

  [[nodiscard]] residue forward(auto& frame, view<const number, 3> x) {
    auto attended = attended_.forward(frame, x);
    auto mixed = experts_.forward(frame, attended.out);
    return {mixed.out, std::move(attended), std::move(mixed)};
  }

  void backward(auto& frame, residue&& r, view<const number, 3> dout, view<number, 3> dx) {
    const auto scope = frame.scratch_scope();
    const auto between = scratch<number>(frame, dx.shape());
    experts_.backward(frame, std::move(r.experts), dout, between);
    attended_.backward(frame, std::move(r.attention), to_read(between), dx);
  }
  /// Of an input that has no gradient: the output of a frozen embedding.
  void backward(auto& frame, residue&& r, view<const number, 3> dout) {
    const auto scope = frame.scratch_scope();
    const auto between = scratch<number>(frame, dout.shape());
    experts_.backward(frame, std::move(r.experts), dout, between);
    attended_.backward(frame, std::move(r.attention), to_read(between));
  }

  void discard(auto& frame, residue&& r, const char* why) { experts_.discard(frame, std::move(r.experts), why); }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    attention_.for_each_parameter(visit);
    experts_.for_each_parameter(visit);
  }

 private:
  std::size_t index_;
  std::string name_;
  attention_type attention_;
  belay::recomputed_part<attention_type> attended_{attention_};
  experts_type experts_;
};

}  // namespace model
