// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The result of a forward that owes nothing, for evaluation and generation. It owns its memory and has no backward.
// Assignment frees what it held before, so a loop over layers needs one name.
//
//   auto x = belay::observe(step, layers[0], tokens);
//   for (std::size_t i = 1; i < layers.size(); ++i) x = belay::observe(step, layers[i], x.out());
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/step/layer.hpp"

namespace belay::inline BELAY_ABI {

template <class Engine, class Layer, class Input>
requires forward_layer<Layer, Engine, Input>
class [[nodiscard]] observed {
 public:
  using output_type = constant_view_t<output_of<Layer, Engine, Input>>;

  /// Of `observe` alone.
  observed(Engine& engine, Layer& layer, const Input& input, const invocation& call)
      : engine_(&engine), epoch_(engine.epoch()), call_(call), residue_(run_forward(engine, layer, input)) {
    if constexpr (checked(check_level::local))
      expect_kept(engine, call_, memory_, residue_, input, residue_use::until_backward);
  }
  observed(observed&& other) noexcept
      : engine_(other.engine_),
        epoch_(std::exchange(other.epoch_, moved_from)),
        call_(other.call_),
        memory_(std::exchange(other.memory_, {})),
        residue_(std::move(other.residue_)) {}
  /// Frees what this one held, memory and residue, and takes the other's.
  observed& operator=(observed&& other) noexcept {
    if (this == &other) return *this;
    release();
    engine_ = other.engine_;
    epoch_ = std::exchange(other.epoch_, moved_from);
    call_ = other.call_;
    memory_ = std::exchange(other.memory_, {});
    std::destroy_at(&residue_);  // a residue with references can be constructed, but not assigned
    std::construct_at(&residue_, std::move(other.residue_));
    return *this;
  }
  ~observed() { release(); }

  /// The layer's output, valid until the step ends or the result is moved from. Afterwards a usage_error.
  [[nodiscard]] output_type out(where at = where::current()) const {
    if (epoch_ != engine_->epoch()) [[unlikely]]
      invocation::refuse_output(call_, epoch_ == moved_from ? "after it was moved from" : step_ended, at.file, at.line);
    return residue_.out;
  }

 private:
  static constexpr std::uint64_t moved_from = ~std::uint64_t{0};  // no engine's epoch

  // The memory of a result that outlives its step was reclaimed with the step.
  void release() noexcept {
    if (epoch_ != engine_->epoch()) return;
    engine_->activations().release(memory_.kept);
    engine_->activations().release(memory_.remembered);
  }

  [[nodiscard]] auto run_forward(Engine& engine, Layer& layer, const Input& input) {
    const typename Engine::watch_type::mark under_way{engine.watch(), call_.now(layer_call::forward)};
    frame<Engine> view{engine, call_, frame_mode::observing, memory_};
    return call_.run(layer_call::forward, [&] { return layer.forward(view, input); });  // in its place
  }

  Engine* engine_;
  std::uint64_t epoch_;
  invocation call_;
  invocation_memory memory_;
  residue_of<Layer, Engine, Input> residue_;
};

}  // namespace belay::inline BELAY_ABI
