// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// x + experts(norm(x)), each token with its k best experts. The block computes; the exchange that it was given moves
// the tokens to the experts and back, and knows which ranks hold them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "belay/parallel/experts/handles.hpp"
#include "belay/parallel/routing.hpp"
#include "belay/step/frame.hpp"
#include "model/experts.hpp"
#include "model/rms_norm.hpp"
#include "model/router.hpp"
#include "model/shapes.hpp"

namespace model {

/// Sizes of a mixture: `experts` of the whole layer, each token visits `per_token` of them.
struct moe_shape {
  std::size_t hidden = 0;
  std::size_t width = 0;
  std::size_t experts = 0;
  std::size_t per_token = 0;
};

/// `Learning` is the experts'.
template <class T, class Exchange, belay::learning Learning = belay::trainable>
class moe_block {
 public:
  using number = compute_type_t<T>;

  /// Keeps `out`, one scale a token, the routing, the exchange's rows and the experts' inner projections.
  struct residue {
    view<number, 3> out;
    view<const number, 3> x;
    view<number, 1> scale;
    belay::routing<number> routed;
    typename experts<T, Learning>::residue inner;
    belay::merged<T> merged;
  };

  /// `name` is the decoder layer's; `exchange` outlives the block.
  moe_block(const std::string& name, moe_shape shape, double epsilon, expert_range local, Exchange& exchange)
      : per_token_(shape.per_token),
        exchange_(&exchange),
        norm_(name + ".post_attention_layernorm.weight", shape.hidden, epsilon),
        router_(name + ".block_sparse_moe.gate.weight", shape.hidden, shape.experts),
        experts_(name + ".block_sparse_moe.experts", shape.experts, shape.hidden, shape.width, local) {}

  /// The factor of one forward's load-balancing loss in the objective.
  void set_balance_scale(double scale) { balance_scale_ = scale; }
  [[nodiscard]] double balance_scale() const { return balance_scale_; }

  [[nodiscard]] residue forward(auto& frame, view<const number, 3> x) {
    const auto rows = rows_of(x);
    const auto out = keep<number>(frame, x.shape());
    const auto scale = keep<number>(frame, row_count(x));
    const auto scope = frame.scratch_scope();
    const auto normed = scratch<T>(frame, rows.shape());
    const auto logits = scratch<number>(frame, {rows.extent(0), router_.experts()});
    norm_.normalise(frame, rows, normed, scale);
    router_.forward(frame, normed, logits);
    const auto routed = belay::route<number>(frame, logits, per_token_);
    auto sent = exchange_->dispatch(frame, to_read(normed), routed);
    const auto inner = experts_.forward(frame, sent.rows(), sent.offsets(), sent.outputs());
    return {out, x, scale, routed, inner, std::move(sent).combine(frame, rows_of(out), rows)};
  }

  void backward(auto& frame, residue&& r, view<const number, 3> dout, view<number, 3> dx) {
    const auto x = rows_of(r.x);
    const auto dy = rows_of(dout);
    const auto scope = frame.scratch_scope();
    const auto din = norm_.before_norm(frame, rows_of(dx));
    const auto dweights = scratch<number>(frame, r.routed.weights.shape());
    const auto dlogits = scratch<T>(frame, r.routed.probabilities.shape());
    auto back = std::move(r.merged).backward(frame, dy, dweights);
    experts_.backward(frame, std::move(r.inner), back.offsets(), back.output_gradients(), back.row_gradients());
    std::move(back).finish(frame, din);
    belay::route_backward<number>(frame, r.routed, dweights, static_cast<number>(balance_scale_), dlogits);
    const auto normed = scratch<T>(frame, x.shape());
    norm_.renormalise(frame, x, r.scale, normed);
    router_.backward(frame, normed, dlogits, din);
    norm_.differentiate(frame, x, r.scale, to_read(din), dy.data(), rows_of(dx));
  }

  /// Ends the forward without a backward: frees the experts' slots. Every rank of the exchange does the same.
  void discard(auto& frame, residue&& r, const char* why) { std::move(r.merged).discard(frame, why); }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    norm_.for_each_parameter(visit);
    router_.for_each_parameter(visit);
    experts_.for_each_parameter(visit);
  }

 private:
  std::size_t per_token_;
  Exchange* exchange_;
  double balance_scale_ = 0;
  rms_norm<T> norm_;
  router<T> router_;
  experts<T, Learning> experts_;
};

}  // namespace model
