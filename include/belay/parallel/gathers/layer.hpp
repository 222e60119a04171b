// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A layer whose parameters are divided among ranks (ZeRO-3). It wraps a layer, and is one: around each forward and
// backward the layer's parameters are gathered, and given back when the call is over. The layer does not change. Over a
// store that divides no parameters it does nothing.
//
//   belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
//   belay::gathers block{net.layers[0], store};
//   auto y = belay::forward(step, block, x);
//   belay::recompute lean{block};   // the forward that is run again and its backward share a gather
// IWYU pragma: private, include "belay/parallel/gathers.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/lists_parameters.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/layer.hpp"

namespace belay::inline BELAY_ABI {

/// `Store` has divided parameters, or whole ones: a `parameter_store`.
template <class Layer, class Store>
class gathers : public output_of_wrapped<Layer> {
  static_assert(is_listing_parameters<Layer>,
                "belay: what a layer reads is gathered before its call: give it for_each_parameter(visit), which "
                "calls visit(parameter) for each of its parameters");

 public:
  using learning_type = layer_learning_t<Layer>;

  /// `layer` and `store` outlive it; the parameters are the store's.
  gathers(Layer& layer, Store& store) : layer_(&layer), store_(&store), number_(store.gathers_for(layer)) {}

  [[nodiscard]] const char* name() const noexcept { return layer_name(*layer_); }
  [[nodiscard]] std::size_t index() const noexcept { return layer_index(*layer_); }
  [[nodiscard]] Layer& layer() const noexcept { return *layer_; }
  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    layer_->for_each_parameter(visit);
  }

  /// The layer's parameters are whole while it lives: an obligation of the call.
  template <class Frame>
  class gathered {
   public:
    gathered(const gathers& of, Frame& call) : of_(&of), call_(of.number_ == Store::whole ? nullptr : &call) {
      if (call_ == nullptr) return;
      of.store_->hold(of.number_, call.engine(), call.call().at);
      opened_ = call.open(obligation_kind::gathered_parameter, of.store_->bytes_of(of.number_), {}, call.call().at);
    }
    gathered(const gathered&) = delete;
    gathered& operator=(const gathered&) = delete;
    ~gathered() {
      if (call_ == nullptr) return;
      of_->store_->give_back(of_->number_);
      call_->close(opened_);
    }

   private:
    const gathers* of_;
    Frame* call_;
    obligation_id opened_;
  };
  /// For one that calls the layer several times, such as `recompute`: one gather for all.
  template <class Frame>
  [[nodiscard]] gathered<Frame> hold(Frame& call) const {
    return {*this, call};
  }

  template <class Engine, class Input>
  [[nodiscard]] auto forward(frame<Engine>& call, const Input& input) {
    const gathered<frame<Engine>> whole{*this, call};
    return layer_->forward(call, input);
  }
  template <class Engine, class Residue, class Dout, class... Dx>
  requires requires(Layer& layer, frame<Engine>& call, Residue&& residue, const Dout& dout, const Dx&... dx) {
    layer.backward(call, std::move(residue), dout, dx...);
  }
  void backward(frame<Engine>& call, Residue&& residue, const Dout& dout, const Dx&... dx) {
    const gathered<frame<Engine>> whole{*this, call};
    layer_->backward(call, std::move(residue), dout, dx...);
  }
  template <class Engine, class Residue>
  requires requires(Layer& layer, frame<Engine>& call, Residue&& residue, const char* why) {
    layer.discard(call, std::move(residue), why);
  }
  void discard(frame<Engine>& call, Residue&& residue, const char* why) {
    layer_->discard(call, std::move(residue), why);
  }

 private:
  Layer* layer_;
  Store* store_;
  std::uint32_t number_;
};

}  // namespace belay::inline BELAY_ABI
