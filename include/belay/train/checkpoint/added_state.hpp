// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What was added to a run's checkpoints, whatever its type: how it is declared, captured and loaded.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stored_bytes.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/train/checkpoint/checkpoint_layout.hpp"
#include "belay/train/checkpoint/checkpoint_reader.hpp"
#include "belay/train/checkpoint/manifest.hpp"
#include "belay/train/residency_hold.hpp"
#include "belay/train/store_memory.hpp"

namespace belay::inline BELAY_ABI {

/// The part of a checkpoint that is loaded: everything, or the values of parameters alone.
enum class state_kinds : std::uint8_t { all, weights };

/// The entries of a manifest beside its tensors.
struct captured_state {
  std::vector<manifest_optimizer> optimizers;
  std::vector<std::pair<std::string, std::string>> states;
};

template <folders_policy Files>
class added_state {
 public:
  template <class Store>
  void add_values(Store& store) {
    declare_.push_back([&store](declared_state& out) {
      std::size_t number = 0;
      store.each_stored([&](auto& parameter, const stored_copies& copies) {
        parameter.each_kept_range([&]<class T>(const held_range<T>& range) {
          const stored_bytes place = place_of(range);
          out.add<T>(parameter, number, value_part, range.first, range.count, std::span<const stored_bytes>(&place, 1),
                     copies.of_values);
        });
        ++number;
      });
    });
    load_.push_back([&store](checkpoint_reader<Files>& in, state_kinds, where at) {
      store.each_stored([&](auto& parameter, const stored_copies&) { load_values(parameter, in, at); });
    });
  }

  template <class Store, class Optimizer>
  void add_optimizer(Store& store, Optimizer& optimizer) {
    declare_.push_back([&store, &optimizer](declared_state& out) {
      const auto add = [&](std::string_view part, const auto& range, auto state) {
        out.add(store.buckets().parameter(range.parameter), range.parameter, part, range.offset, state,
                store.copies_of(range.parameter).of_state);
      };
      const auto add_places = [&](std::string_view part, const auto& range, std::span<const stored_bytes> places) {
        out.add<typename Optimizer::state_type>(store.buckets().parameter(range.parameter), range.parameter, part,
                                                range.offset, range.count, places,
                                                store.copies_of(range.parameter).of_state);
      };
      if constexpr (requires { optimizer.each_state_place(add_places); })
        optimizer.each_state_place(add_places);
      else
        optimizer.each_state(add);
    });
    const std::size_t number = optimizers_.size();
    load_.push_back([&store, &optimizer, number](checkpoint_reader<Files>& in, state_kinds kinds, where at) {
      const auto load = [&](std::string_view part, const auto& range, auto state) {
        load_range(store.buckets().parameter(range.parameter), part, range, state, in, kinds, at);
      };
      if constexpr (requires { optimizer.fill_state(load); })
        optimizer.fill_state(load, at);
      else
        optimizer.each_state(load);
      if (kinds == state_kinds::weights) return optimizer.continue_after(0);
      if (number >= in.content().optimizers.size())
        throw file_error(
            in.folder(), 0,
            "has the state of " + std::to_string(in.content().optimizers.size()) + " optimizers, this run has more",
            at);
      optimizer.continue_after(in.content().optimizers[number].steps);
    });
    add_holds(store, optimizer);
    optimizers_.push_back([&optimizer] {
      manifest_optimizer out{optimizer.steps(), {}};
      optimizer.each_setting([&](const char* name, double value) {
        if (is_finite(value)) out.settings.emplace_back(name, value);  // JSON has no other numbers
      });
      return out;
    });
  }

  /// Throws usage_error where a state of that name was added.
  template <class State>
  void add_user(std::string name, State& state, where at) {
    for (const auto& [known, save] : states_)
      if (known == name)
        throw usage_error("state " + printable(name) + " is added twice: a checkpoint has one text of a name", at);
    load_.push_back([&state, name](checkpoint_reader<Files>& in, state_kinds kinds, where loaded_at) {
      if (kinds == state_kinds::weights) return;
      for (const auto& [known, text] : in.content().states)
        if (known == name) return state.load(std::string_view(text));
      throw file_error(in.folder(), 0, "has no state " + printable(name), loaded_at);
    });
    states_.emplace_back(std::move(name), [&state] { return std::string(state.save()); });
  }

  void declare(declared_state& out) const {
    for (const auto& each : declare_) each(out);
  }
  /// Whether a phase has state of optimizers away from the device.
  [[nodiscard]] bool away() const {
    return std::any_of(away_.begin(), away_.end(), [](const auto& each) { return each(); });
  }
  /// It is there while the result lives.
  [[nodiscard]] std::vector<residency_hold> hold(where at) const {
    std::vector<residency_hold> out;
    for (const auto& each : hold_) out.push_back(each(at));
    return out;
  }
  /// Throws usage_error where the text of a state is none: a manifest would have other bytes.
  [[nodiscard]] captured_state capture(where at) const {
    captured_state out;
    for (const auto& each : optimizers_) out.optimizers.push_back(each());
    for (const auto& [name, save] : states_) out.states.emplace_back(name, expected_text(save(), name, at));
    return out;
  }
  /// The part of a manifest in which rank 0 speaks for all ranks: the names of states, and of each optimizer its steps
  /// and settings.
  [[nodiscard]] std::string described() const {
    std::string out = states_.empty() ? "no state" : states_.size() == 1 ? "state " : "states ";
    for (std::size_t i = 0; i < states_.size(); ++i) out += (i > 0 ? ", " : "") + printable(states_[i].first);
    for (std::size_t i = 0; i < optimizers_.size(); ++i) {
      const manifest_optimizer each = optimizers_[i]();
      out += "; optimizer " + std::to_string(i) + " after " + std::to_string(each.steps) + " steps, of";
      for (const auto& [name, value] : each.settings) out += " " + name;
    }
    return out;
  }
  void load(checkpoint_reader<Files>& in, state_kinds kinds, where at) const {
    for (const auto& each : load_) each(in, kinds, at);
  }

 private:
  [[nodiscard]] static std::string expected_text(std::string text, const std::string& name, where at) {
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t length = utf8_length(std::string_view(text).substr(i));
      if (length == 0)
        throw usage_error("state " + printable(name) + ": save() gives bytes that are no text, the first at " +
                              std::to_string(i) + ": give UTF-8, such as numbers in words or hexadecimal digits",
                          at);
      i += length;
    }
    return text;
  }

  using reader = checkpoint_reader<Files>;

  // State in a lower tier is where it is in every phase.
  template <class Store, class Optimizer>
  void add_holds(const Store& store, const Optimizer& optimizer) {
    if constexpr (requires { optimizer.state_tier(); })
      if (optimizer.state_tier() != tier::device) return;
    if constexpr (requires(where at) { store.hold_state(at); }) {
      away_.push_back([&store] { return store.state_away(); });
      hold_.push_back([&store](where at) { return store.hold_state(at); });
    }
  }

  template <class T>
  [[nodiscard]] static stored_bytes place_of(const held_range<T>& range) {
    if (range.file != nullptr) return range.file->place_of(range.data, range.count * sizeof(T));
    return {std::as_bytes(std::span<T>(range.data, range.count)), range.access};
  }

  template <class Parameter>
  [[nodiscard]] static const manifest_tensor& tensor_of(const Parameter& parameter, const reader& in, where at) {
    const std::vector<std::uint64_t> shape(parameter.shape().begin(), parameter.shape().end());
    return in.tensor_named(parameter.name(), shape, at);
  }

  // Wide values come from the master copy, where a narrow run has left one.
  template <class Parameter>
  static void load_values(Parameter& parameter, reader& in, where at) {
    using element = typename Parameter::value_type;
    if (parameter.global_size() == 0) return;
    const manifest_tensor& from = tensor_of(parameter, in, at);
    const bool wide = std::is_same_v<element, compute_type_t<element>>;
    const std::string_view part = wide && reader::has_part(from, "master") ? "master" : value_part;
    parameter.fill([&](std::size_t first, std::span<element> values) { in.read(from, part, first, values, at); }, at);
  }

  template <class Parameter, class Range, class State>
  static void load_range(const Parameter& parameter, std::string_view part, const Range& range, std::span<State> state,
                         reader& in, state_kinds kinds, where at) {
    if (kinds == state_kinds::weights && part != "master") {
      for (State& each : state) each = State{};
      return;
    }
    const manifest_tensor& from = tensor_of(parameter, in, at);
    std::string_view wanted = part;
    if (part == "master" && !reader::has_part(from, part)) wanted = value_part;
    if (!reader::has_part(from, wanted))
      throw file_error(in.folder(), 0,
                       "has no " + std::string(wanted) + " of tensor " + printable(from.name) +
                           ", as where it was frozen: its weights alone can be loaded",
                       at);
    each_run_of(parameter, range.offset, range.count, [&](std::size_t first, std::size_t in_range, std::size_t count) {
      in.read(from, wanted, first, state.subspan(in_range, count), at);
    });
  }

  std::vector<std::function<void(declared_state&)>> declare_;
  std::vector<std::function<void(reader&, state_kinds, where)>> load_;
  std::vector<std::function<manifest_optimizer()>> optimizers_;
  std::vector<std::function<bool()>> away_;
  std::vector<std::function<residency_hold(where)>> hold_;
  std::vector<std::pair<std::string, std::function<std::string()>>> states_;
};

}  // namespace belay::inline BELAY_ABI
