// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What was added to a run's checkpoints, whatever its type: how it is declared, captured and loaded.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/train/checkpoint/checkpoint_layout.hpp"
#include "belay/train/checkpoint/checkpoint_reader.hpp"
#include "belay/train/checkpoint/manifest.hpp"
#include "belay/train/store.hpp"

namespace belay::inline BELAY_ABI {

/// The part of a checkpoint that is loaded: everything, or the values of parameters alone.
enum class state_kinds : std::uint8_t { all, weights };

/// The entries of a manifest beside its tensors.
struct captured_state {
  std::vector<manifest_optimizer> optimizers;
  std::vector<std::pair<std::string, std::string>> states;
};

/// Something that was added.
template <folders_policy Files>
class added_object {
 public:
  using reader = checkpoint_reader<Files>;

  virtual ~added_object() = default;
  virtual void declare(declared_state& /*out*/) const {}
  virtual void load(reader& in, state_kinds kinds, where at) = 0;
  /// Whether a phase has it away from the device; it is there while the hold lives.
  [[nodiscard]] virtual bool away() const { return false; }
  [[nodiscard]] virtual residency_hold hold(where /*at*/) const { return {}; }
  /// Of an optimizer, its steps and settings; of a state of one's own, its name and text.
  [[nodiscard]] virtual std::optional<manifest_optimizer> optimizer() const { return std::nullopt; }
  [[nodiscard]] virtual const std::string* name() const { return nullptr; }
  [[nodiscard]] virtual std::string text() const { return {}; }
};

/// The tensor of a parameter in the checkpoint that is read.
template <class Parameter, folders_policy Files>
[[nodiscard]] const manifest_tensor& tensor_of(const Parameter& parameter, const checkpoint_reader<Files>& in,
                                               where at) {
  const std::vector<std::uint64_t> shape(parameter.shape().begin(), parameter.shape().end());
  return in.tensor_named(parameter.name(), shape, at);
}

/// The values of a store's parameters.
template <folders_policy Files, class Store>
class added_values final : public added_object<Files> {
 public:
  using typename added_object<Files>::reader;

  explicit added_values(Store& store) : store_(&store) {}

  void declare(declared_state& out) const override;
  void load(reader& in, state_kinds /*kinds*/, where at) override;

 private:
  template <class T>
  [[nodiscard]] static stored_bytes place_of(const held_range<T>& range) {
    if (range.file != nullptr) return range.file->place_of(range.data, range.count * sizeof(T));
    return {std::as_bytes(std::span<T>(range.data, range.count)), range.access};
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

  Store* store_;
};

template <folders_policy Files, class Store>
void added_values<Files, Store>::declare(declared_state& out) const {
  std::size_t number = 0;
  store_->each_stored([&](auto& parameter, const stored_copies& copies) {
    parameter.each_kept_range([&]<class T>(const held_range<T>& range) {
      const stored_bytes place = place_of(range);
      out.add<T>(parameter, number, value_part, range.first, range.count, std::span<const stored_bytes>(&place, 1),
                 copies.of_values);
    });
    ++number;
  });
}

template <folders_policy Files, class Store>
void added_values<Files, Store>::load(reader& in, state_kinds /*kinds*/, where at) {
  store_->each_stored([&](auto& parameter, const stored_copies&) { load_values(parameter, in, at); });
}

/// The state of a store's optimizer, the `number`-th of them.
template <folders_policy Files, class Store, class Optimizer>
class added_optimizer final : public added_object<Files> {
 public:
  using typename added_object<Files>::reader;

  added_optimizer(Store& store, Optimizer& optimizer, std::size_t number)
      : store_(&store), optimizer_(&optimizer), number_(number) {}

  void declare(declared_state& out) const override;
  void load(reader& in, state_kinds kinds, where at) override;
  // State in a lower tier is where it is in every phase.
  [[nodiscard]] bool away() const override;
  [[nodiscard]] residency_hold hold([[maybe_unused]] where at) const override;
  [[nodiscard]] std::optional<manifest_optimizer> optimizer() const override;

 private:
  static constexpr bool moves = requires(const Store& store, where at) { store.hold_state(at); };

  [[nodiscard]] bool is_on_device() const {
    if constexpr (requires(const Optimizer& optimizer) { optimizer.state_tier(); })
      return optimizer_->state_tier() == tier::device;
    return true;
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

  Store* store_;
  Optimizer* optimizer_;
  std::size_t number_;
};

template <folders_policy Files, class Store, class Optimizer>
void added_optimizer<Files, Store, Optimizer>::declare(declared_state& out) const {
  const auto add = [&](std::string_view part, const auto& range, auto state) {
    out.add(store_->buckets().parameter(range.parameter), range.parameter, part, range.offset, state,
            store_->copies_of(range.parameter).of_state);
  };
  const auto add_places = [&](std::string_view part, const auto& range, std::span<const stored_bytes> places) {
    out.add<typename Optimizer::state_type>(store_->buckets().parameter(range.parameter), range.parameter, part,
                                            range.offset, range.count, places,
                                            store_->copies_of(range.parameter).of_state);
  };
  if constexpr (requires(Optimizer& optimizer) { optimizer.each_state_place(add_places); })
    optimizer_->each_state_place(add_places);
  else
    optimizer_->each_state(add);
}

template <folders_policy Files, class Store, class Optimizer>
void added_optimizer<Files, Store, Optimizer>::load(reader& in, state_kinds kinds, where at) {
  const auto load = [&](std::string_view part, const auto& range, auto state) {
    load_range(store_->buckets().parameter(range.parameter), part, range, state, in, kinds, at);
  };
  if constexpr (requires(Optimizer& optimizer) { optimizer.fill_state(load); })
    optimizer_->fill_state(load, at);
  else
    optimizer_->each_state(load);
  if (kinds == state_kinds::weights) return optimizer_->continue_after(0);
  if (number_ >= in.content().optimizers.size())
    throw file_error(
        in.folder(), 0,
        "has the state of " + std::to_string(in.content().optimizers.size()) + " optimizers, this run has more", at);
  optimizer_->continue_after(in.content().optimizers[number_].steps);
}

template <folders_policy Files, class Store, class Optimizer>
bool added_optimizer<Files, Store, Optimizer>::away() const {
  if constexpr (moves) return is_on_device() && store_->state_away();
  return false;
}

template <folders_policy Files, class Store, class Optimizer>
residency_hold added_optimizer<Files, Store, Optimizer>::hold(where at) const {
  if constexpr (moves)
    if (is_on_device()) return store_->hold_state(at);
  return {};
}

template <folders_policy Files, class Store, class Optimizer>
std::optional<manifest_optimizer> added_optimizer<Files, Store, Optimizer>::optimizer() const {
  manifest_optimizer out{optimizer_->steps(), {}};
  optimizer_->each_setting([&](const char* name, double value) {
    if (is_finite(value)) out.settings.emplace_back(name, value);  // JSON has no other numbers
  });
  return out;
}

/// State of one's own, under a name.
template <folders_policy Files, class State>
class added_user_state final : public added_object<Files> {
 public:
  using typename added_object<Files>::reader;

  added_user_state(std::string name, State& state) : name_(std::move(name)), state_(&state) {}

  void load(reader& in, state_kinds kinds, where at) override {
    if (kinds == state_kinds::weights) return;
    for (const auto& [known, text] : in.content().states)
      if (known == name_) return state_->load(std::string_view(text));
    throw file_error(in.folder(), 0, "has no state " + printable(name_), at);
  }
  [[nodiscard]] const std::string* name() const override { return &name_; }
  [[nodiscard]] std::string text() const override { return std::string(std::as_const(*state_).save()); }

 private:
  std::string name_;
  State* state_;
};

template <folders_policy Files>
class added_state {
 public:
  using reader = checkpoint_reader<Files>;

  template <class Store>
  void add_values(Store& store);
  template <class Store, class Optimizer>
  void add_optimizer(Store& store, Optimizer& optimizer);
  /// Throws usage_error where a state of that name was added.
  template <class State>
  void add_user(std::string name, State& state, where at) {
    for (const auto& each : all_)
      if (each->name() != nullptr && *each->name() == name)
        throw usage_error("state " + printable(name) + " is added twice: a checkpoint has one text of a name", at);
    all_.push_back(std::make_unique<added_user_state<Files, State>>(std::move(name), state));
  }

  void declare(declared_state& out) const;
  /// Whether a phase has state of optimizers away from the device.
  [[nodiscard]] bool away() const;
  /// It is there while the result lives.
  [[nodiscard]] std::vector<residency_hold> hold(where at) const;
  /// Throws usage_error where the text of a state is none: a manifest would have other bytes.
  [[nodiscard]] captured_state capture(where at) const;
  /// The part of a manifest in which rank 0 speaks for all ranks: the names of states, and of each optimizer its steps
  /// and settings.
  [[nodiscard]] std::string described() const;
  void load(reader& in, state_kinds kinds, where at) const;

 private:
  [[nodiscard]] static std::string expected_text(std::string text, const std::string& name, where at);

  std::vector<std::unique_ptr<added_object<Files>>> all_;
  std::size_t optimizers_ = 0;
};

template <folders_policy Files>
template <class Store>
void added_state<Files>::add_values(Store& store) {
  all_.push_back(std::make_unique<added_values<Files, Store>>(store));
}

template <folders_policy Files>
template <class Store, class Optimizer>
void added_state<Files>::add_optimizer(Store& store, Optimizer& optimizer) {
  all_.push_back(std::make_unique<added_optimizer<Files, Store, Optimizer>>(store, optimizer, optimizers_++));
}

template <folders_policy Files>
void added_state<Files>::declare(declared_state& out) const {
  for (const auto& each : all_) each->declare(out);
}

template <folders_policy Files>
bool added_state<Files>::away() const {
  return std::ranges::any_of(all_, [](const auto& each) { return each->away(); });
}

template <folders_policy Files>
std::vector<residency_hold> added_state<Files>::hold(where at) const {
  std::vector<residency_hold> out;
  for (const auto& each : all_) out.push_back(each->hold(at));
  return out;
}

template <folders_policy Files>
captured_state added_state<Files>::capture(where at) const {
  captured_state out;
  for (const auto& each : all_) {
    if (auto own = each->optimizer()) out.optimizers.push_back(*std::move(own));
    if (const std::string* const name = each->name())
      out.states.emplace_back(*name, expected_text(each->text(), *name, at));
  }
  return out;
}

template <folders_policy Files>
std::string added_state<Files>::described() const {
  std::string names, optimizers;
  std::size_t states = 0, number = 0;
  for (const auto& each : all_) {
    if (const std::string* const name = each->name()) names += (states++ > 0 ? ", " : "") + printable(*name);
    if (const auto own = each->optimizer()) {
      optimizers += "; optimizer " + std::to_string(number++) + " after " + std::to_string(own->steps) + " steps, of";
      for (const auto& [name, value] : own->settings) optimizers += " " + name;
    }
  }
  return (states == 0 ? "no state" : states == 1 ? "state " : "states ") + names + optimizers;
}

template <folders_policy Files>
void added_state<Files>::load(reader& in, state_kinds kinds, where at) const {
  for (const auto& each : all_) each->load(in, kinds, at);
}

template <folders_policy Files>
std::string added_state<Files>::expected_text(std::string text, const std::string& name, where at) {
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

}  // namespace belay::inline BELAY_ABI
