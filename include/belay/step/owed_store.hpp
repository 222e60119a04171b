// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Keeps owed backwards between forward and backward, by layer and micro-batch: a member of a trainer or of a layer
// whose backward is another function than its forward. It grows to as many as are owed at a time. What a destroyed
// store still holds is not discharged, and the step refuses to commit.
//
//   belay::owed_store owed;                                                             // a member
//   owed.keep(belay::owe(scope, {"attention", layer}, {qkv, projection}));              // in the forward
//   owed.take({"attention", layer}, micro_batch).backward([&] { attention_backward(...); });
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/step/handle_store.hpp"
#include "belay/step/owed.hpp"

namespace belay::inline BELAY_ABI {

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
