// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Calls of a layer by its handle, as far as no layer's type matters: what is entered and left around them, and how an
// obligation ends. A program compiles them once for an engine, not once for each type of handle; those of the host's
// engine it links. The layer's own code is called through a reference.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/step/contribution.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/weight_notes.hpp"

namespace belay::inline BELAY_ABI {

/// No engine's epoch: that of a handle that was used up.
inline constexpr std::uint64_t used_up_epoch = ~std::uint64_t{0};

/// The calls that the handles of all layers make alike on an engine.
template <class Engine>
struct handle_calls {
  using layer_code = function_ref<void(frame<Engine>&)>;
  using mark = typename Engine::watch_type::mark;

  /// Runs `code` as the backward of a layer, and tells whom it has added to. Its scratch memory lives until then.
  static void run_backward(Engine& engine, const invocation& call, invocation_memory& memory, layer_code code,
                           where at);
  /// Runs `code` as a half that the layer has written, and tells whom it has added to once its scratch memory is free.
  static void run_half(Engine& engine, const invocation& call, layer_call what, invocation_memory& memory,
                       layer_code code, where at);
  /// Runs `code` as the first half of a backward, whose additions go to `notes`. Returns whether all of them ran at
  /// once, because it has asked for a gradient's memory.
  static bool run_noting(Engine& engine, const invocation& call, invocation_memory& memory, weight_note_list& notes,
                         layer_code code, where at);
  /// Runs such notes; a half that has none costs no call.
  static void run_noted(Engine& engine, const invocation& call, weight_note_list& notes, where at) {
    const mark under_way{engine.watch(), call.now(layer_call::weight_gradient)};
    if (!notes.empty()) run_some(engine, call, notes, at);
  }
  static void run_some(Engine& engine, const invocation& call, weight_note_list& notes, where at);

  /// Bytes that a call holds until its backward.
  [[nodiscard]] static std::size_t held_bytes(const Engine& engine, const invocation_memory& memory) noexcept {
    const offset_allocator& leases = engine.activations().offsets();
    return leases.bytes_of(memory.kept) + leases.bytes_of(memory.remembered);
  }
  /// Ends the obligation of a handle and frees its memory, or that of its notes, unless the step has ended, which has
  /// reclaimed everything. `release` frees alone. They are short,
  /// and inlined.
  static void settle(Engine& engine, obligation_id& obligation, std::uint64_t& epoch, invocation_memory& memory,
                     where at) {
    engine.obligations().close(obligation, at);
    obligation = {};
    release(engine, epoch, memory);
  }
  static void settle_noted(Engine& engine, obligation_id& obligation, std::uint64_t& epoch, weight_note_list& notes,
                           where at) {
    engine.obligations().close(obligation, at);
    obligation = {};
    if (std::exchange(epoch, used_up_epoch) != engine.epoch()) return notes.forget();
    notes.drop(engine.notes());
  }
  static void release(Engine& engine, std::uint64_t& epoch, invocation_memory& memory) noexcept {
    if (std::exchange(epoch, used_up_epoch) != engine.epoch()) return;
    engine.activations().release(memory.kept);
    engine.activations().release(memory.remembered);
  }
};

template <class Engine>
void handle_calls<Engine>::run_backward(Engine& engine, const invocation& call, invocation_memory& memory,
                                        layer_code code, where at) {
  const mark under_way{engine.watch(), call.now(layer_call::backward)};
  frame<Engine> view{engine, call, frame_mode::owing, memory};
  contribution_list contributions;
  view.begin_backward(contributions);
  call.run(layer_call::backward, [&] { code(view); });
  if (!contributions.empty()) contributions.contribute(call.micro_batch, engine.compute().record(), at);
}

template <class Engine>
void handle_calls<Engine>::run_half(Engine& engine, const invocation& call, layer_call what, invocation_memory& memory,
                                    layer_code code, where at) {
  const mark under_way{engine.watch(), call.now(what)};
  contribution_list contributions;
  call.run(what, [&] {
    frame<Engine> view{engine, call, frame_mode::owing, memory};
    view.begin_backward(contributions);
    code(view);
  });
  if (!contributions.empty()) contributions.contribute(call.micro_batch, engine.compute().record(), at);
}

template <class Engine>
bool handle_calls<Engine>::run_noting(Engine& engine, const invocation& call, invocation_memory& memory,
                                      weight_note_list& notes, layer_code code, where at) {
  const mark under_way{engine.watch(), call.now(layer_call::input_gradient)};
  contribution_list contributions;
  bool added_at_once = false;
  call.run(layer_call::input_gradient, [&] {
    frame<Engine> view{engine, call, frame_mode::owing, memory};
    weight_noting noting;
    view.begin_input_half(contributions, noting);
    code(view);
    added_at_once = noting.closed;
    notes.take(noting.notes);
  });
  if (added_at_once) {
    engine.notes().note_added_at_once();
    const mark said{engine.watch(), call.now(layer_call::added_at_once)};
  }
  if (!contributions.empty()) contributions.contribute(call.micro_batch, engine.compute().record(), at);
  return added_at_once;
}

template <class Engine>
void handle_calls<Engine>::run_some(Engine& engine, const invocation& call, weight_note_list& notes, where at) {
  contribution_list contributions;
  call.run(layer_call::weight_gradient, [&] {
    invocation_memory none;
    frame<Engine> view{engine, call, frame_mode::owing, none};
    view.begin_backward(contributions);
    view.run_notes(notes);
  });
  if (!contributions.empty()) contributions.contribute(call.micro_batch, engine.compute().record(), at);
}

#if defined(BELAY_SEPARATE_COMPILATION)
extern template struct handle_calls<host_engine>;
#endif

}  // namespace belay::inline BELAY_ABI
