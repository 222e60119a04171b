// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Keeps handles between forward and backward, for a pipeline stage or a loop over layers: containers of the standard
// library do not take them. A store has a fixed number of slots and allocates once. What a destroyed store still holds
// is not discharged, and the step refuses to commit.
//
//   belay::handle_store<belay::saved<engine, block, input>> handles{layers.size()};
//   for (std::size_t i = 0; i < layers.size(); ++i) {
//     handles.keep(i, belay::forward(step, layers[i], x));
//     x = handles.at(i).out();
//   }
//   for (std::size_t i = layers.size(); i-- > 0;) grad = handles.take(i).backward(grad);
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/step/owed.hpp"

namespace belay::inline BELAY_ABI {

template <class Handle>
class handle_store {
 public:
  handle_store() = default;
  /// So many slots, empty.
  explicit handle_store(std::size_t slot_count) : slots_(slot_count) {}
  handle_store(handle_store&&) noexcept = default;
  handle_store& operator=(handle_store&&) = delete;  // it would lose the handles of the left side
  ~handle_store() = default;

  /// Slots; whether a slot has a handle.
  [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
  [[nodiscard]] bool holds(std::size_t index) const noexcept { return index < size() && slots_[index].held; }

  /// Takes a handle over. Throws usage_error where the slot does not exist, or holds a handle that still owes.
  void keep(std::size_t index, Handle&& handle, where at = where::current()) {
    handle_slot& free = slots_[expect(index, at)];
    if (free.held && owes(free.handle)) refuse(index, free.handle, at);
    free.clear();
    ::new (static_cast<void*>(std::addressof(free.handle))) Handle(std::move(handle));
    free.held = true;
  }

  /// The handle in a slot, to ask for its output. Throws usage_error where there is none.
  [[nodiscard]] Handle& at(std::size_t index, where asked = where::current()) {
    return slots_[expect_held(index, asked)].handle;
  }
  [[nodiscard]] const Handle& at(std::size_t index, where asked = where::current()) const {
    return slots_[expect_held(index, asked)].handle;
  }

  /// Gives the handle back, to be discharged in the same expression or under a name of its own, and empties the slot.
  /// Throws usage_error where there is none.
  BELAY_OPENS [[nodiscard]] Handle take(std::size_t index, where asked = where::current()) {
    const emptied afterwards{&slots_[expect_held(index, asked)]};
    return Handle(std::move(afterwards.slot_->handle));
  }

  /// Empties all slots without discharging anything: for handles of a step that has ended, which has reported them.
  void forget() noexcept {
    for (handle_slot& one : slots_) one.clear();
  }

 private:
  struct handle_slot {
    handle_slot() noexcept {}
    handle_slot(const handle_slot&) = delete;
    handle_slot& operator=(const handle_slot&) = delete;
    ~handle_slot() { clear(); }
    void clear() noexcept {
      if (std::exchange(held, false)) std::destroy_at(std::addressof(handle));
    }

    bool held = false;
    union {
      Handle handle;
    };
  };
  struct emptied {
    handle_slot* slot_;
    ~emptied() { slot_->clear(); }
  };

  // An activation of a step that has ended owes nothing. Handles that cannot say it owe until they are taken.
  [[nodiscard]] static bool owes(const Handle& held) noexcept {
    if constexpr (requires { held.owes(); })
      return held.owes();
    else
      return true;
  }
  [[nodiscard]] std::size_t expect(std::size_t index, where at) const {
    if (index >= size()) [[unlikely]]
      handle_refusals::no_slot(size(), index, at);
    return index;
  }
  [[nodiscard]] std::size_t expect_held(std::size_t index, where at) const {
    if (!slots_[expect(index, at)].held) [[unlikely]]
      handle_refusals::empty(index, at);
    return index;
  }
  [[noreturn]] static void refuse(std::size_t index, const Handle& held, where at) {
    if constexpr (requires { held.call().layer; })
      handle_refusals::owes(index, &held.call(), at);
    else
      handle_refusals::owes(index, nullptr, at);
  }

  std::vector<handle_slot> slots_;
};

/// Keeps owed backwards between forward and backward, by layer and micro-batch: a member of a trainer or of a layer
/// whose backward is another function than its forward. It grows to as many as are owed at a time. What a destroyed
/// store still holds is not discharged, and the step refuses to commit.
class owed_store {
 public:
  owed_store() = default;
  owed_store(owed_store&&) noexcept = default;
  owed_store& operator=(owed_store&&) = delete;  // it would lose what the left side holds
  ~owed_store() = default;

  /// Takes an owed backward over. Throws usage_error where one of its layer and micro-batch is here that still owes.
  void keep(owed&& backward, where at = where::current()) {
    const invocation& call = backward.call();
    const std::size_t found = place_of(call.layer, call.layer_index, call.micro_batch);
    const std::size_t place = found != nowhere ? found : free_place();
    parts_[place / part_size].keep(place % part_size, std::move(backward), at);
  }

  /// Gives that of a layer and micro-batch back, to be discharged in the same expression or under a name of its own.
  /// Throws usage_error where there is none.
  BELAY_OPENS [[nodiscard]] owed take(owed_layer layer, std::size_t micro_batch = 0, where at = where::current()) {
    const std::size_t place = place_of(layer.name, layer.index, micro_batch);
    if (place == nowhere)
      throw usage_error("no owed backward of layer " + std::to_string(layer.index) + " '" + printable(layer.name) +
                            "' (micro-batch " + std::to_string(micro_batch) + ") is kept in this owed_store",
                        at);
    return parts_[place / part_size].take(place % part_size, at);
  }

  /// Whether that of a layer and micro-batch is here; how many are.
  [[nodiscard]] bool holds(owed_layer layer, std::size_t micro_batch = 0) const {
    return place_of(layer.name, layer.index, micro_batch) != nowhere;
  }
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t all = 0;
    for (std::size_t i = 0; i < places(); ++i) all += holds_at(i) ? 1U : 0U;
    return all;
  }

  /// Empties it without discharging anything: for those of a step that has ended, which has reported them.
  void forget() noexcept {
    for (handle_store<owed>& part : parts_) part.forget();
  }

 private:
  static constexpr std::size_t part_size = 16;
  static constexpr std::size_t nowhere = largest_value<std::size_t>;

  [[nodiscard]] std::size_t places() const noexcept { return parts_.size() * part_size; }
  [[nodiscard]] bool holds_at(std::size_t i) const noexcept { return parts_[i / part_size].holds(i % part_size); }
  [[nodiscard]] std::size_t place_of(std::string_view layer, std::size_t number, std::size_t micro_batch) const {
    for (std::size_t i = 0; i < places(); ++i) {
      if (!holds_at(i)) continue;
      const invocation& call = parts_[i / part_size].at(i % part_size).call();
      if (call.layer_index == number && call.micro_batch == micro_batch && layer == call.layer) return i;
    }
    return nowhere;
  }
  [[nodiscard]] std::size_t free_place() {
    for (std::size_t i = 0; i < places(); ++i)
      if (!holds_at(i)) return i;
    parts_.emplace_back(part_size);
    return places() - part_size;
  }

  std::vector<handle_store<owed>> parts_;
};

}  // namespace belay::inline BELAY_ABI
