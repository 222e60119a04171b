// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An update of one's own over what a rank owns of a store: a function is called for each range, in the order of the
// compute stream, and the values are gathered on the ranks that replicate them. Of values that are narrower than their
// gradients it works on master copies, which are rounded; what lies in a lower tier that cannot be addressed comes to a
// ring, chunk by chunk.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/where.hpp"
#include "belay/device/slot_ring.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/optimizer.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/step/frame.hpp"
#include "belay/train/optimizer/offloaded_state.hpp"
#include "belay/train/optimizer/update.hpp"

namespace belay::inline BELAY_ABI {

/// A function for `store.update` that runs on the host.
template <class F, class T>
concept updates_on_host = std::invocable<F&, const std::string&, std::span<compute_type_t<T>>,
                                         std::span<const compute_type_t<T>>, std::size_t>;
/// One that queues kernels through a frame.
template <class F, class Engine, class T>
concept updates_in_frame = std::invocable<F&, frame<Engine>&, const std::string&, std::span<compute_type_t<T>>,
                                          std::span<const compute_type_t<T>>, std::size_t>;

template <class Store>
class store_update {
 public:
  using value_type = typename Store::value_type;
  using number = compute_type_t<value_type>;
  using engine_type = typename Store::run_type::engine_type;
  using group_type = typename Store::group_type;

  /// The store outlives it.
  explicit store_update(Store& store) noexcept : store_(&store) {}

  /// True, or it does not compile and says what such a function is.
  template <class F>
  [[nodiscard]] static consteval bool takes() {
    constexpr bool in_frame = updates_in_frame<F, engine_type, value_type>;
    static_assert(in_frame || updates_on_host<F, value_type>,
                  "belay: store.update calls f(name, values, gradients, first), with std::span<float> values and "
                  "std::span<const float> gradients (double of double), or f(frame, name, values, gradients, first)");
    static_assert(in_frame || !updates_on_host<F, value_type> || !works_on_device<group_type>,
                  "belay: the host does not address this store's memory: an update launches kernels through a frame, "
                  "f(frame, name, values, gradients, first)");
    return in_frame || (updates_on_host<F, value_type> && !works_on_device<group_type>);
  }

  /// Calls `f` for all that this rank owns. Collective over the replica groups of the store's parameters.
  template <class F>
  void run(F& f, where at) {
    if (!made_) make(at);
    auto& buckets = store_->buckets();
    auto& engine = store_->run().engine();
    if (store_->rehearsed()) {
      rehearse(f, at);
    } else if (streamed_) {
      const auto computes = [&](const owned_range<value_type>& range, std::size_t offset, value_type* value,
                                const number* gradient, const auto& state, std::size_t count) {
        number* master = nullptr;
        if constexpr (has_master) master = state[0];
        change(f, range, offset, {value, count}, gradient, master, at);
      };
      streamed_->update(engine, buckets, computes, at);
    } else {
      const auto changes = [&](const owned_range<value_type>& range, std::size_t done) {
        number* const master = has_master ? masters_.data() + done : nullptr;
        change(f, range, 0, {range.value, range.count}, range.gradient, master, at);
      };
      change_and_gather(engine.compute(), buckets, buckets.owned(), changes, at);
    }
  }

 private:
  static constexpr bool has_master = !std::is_same_v<value_type, number>;
  static constexpr std::size_t parts = has_master ? 1 : 0;
  using streamed_type = offloaded_state<value_type, system_tier_file_calls, parts>;

  // In the first update, which a rehearsal has too: memory for as long as the run.
  void make(where at) {
    made_ = true;
    auto& run = store_->run();
    const auto owned = [this](int rank) { return store_->owned_elements(rank); };
    if (!has_master && !streams()) return;
    store_->ask_shards();  // the peak of a step was without this shard
    if constexpr (has_master) masters_ = run.template lease_shard<number>(tier::device, owned, "master copies", at);
    if (!streams()) return;
    const bool on_device = belay::on_device(run.computes());
    const optimizer_memory memory;
    const state_layout sizes(tier::device, run.computes(), memory.chunk, parts, sizeof(number), sizeof(value_type), 0);
    const std::span<std::byte> ring = run.template lease_shard<std::byte>(
        on_device ? tier::device : tier::host, [&](int rank) { return sizes.ring_bytes(owned(rank)); }, "update ring",
        at);
    if (store_->rehearsed()) return;
    auto& buckets = store_->buckets();
    std::vector<bucket_copies> copied =
        copies_of_buckets(buckets, [&](tier in) { return on_device && in != tier::device; });
    const slot_contents free = run.engine().poisons() ? slot_contents::poisoned : slot_contents::kept;
    streamed_ = std::make_shared<streamed_type>(buckets.owned(), elements(), std::move(copied), memory, sizes, masters_,
                                                ring, std::span<std::byte>(), free, at);
    run.keep(streamed_);
  }
  // Whether something lies where it cannot be addressed: on a host in a file, on a device in any lower tier.
  [[nodiscard]] bool streams() const {
    const bucket_layout& layout = store_->buckets().layout();
    if (belay::on_device(store_->run().computes())) return has_lower_shards(layout);
    return std::ranges::any_of(layout.replica_groups(), [](const replica_group_shape& each) {
      return each.values == tier::file || each.gradients == tier::file;
    });
  }
  [[nodiscard]] std::size_t elements() const {
    std::size_t all = 0;
    for (const auto& range : store_->buckets().owned()) all += range.count;
    return all;
  }

  // A function that takes a frame is called for its leases, which are planned; one that runs on the host is not called.
  template <class F>
  void rehearse(F& f, where at) {
    if constexpr (updates_in_frame<F, engine_type, value_type>) {
      store_->ask_shards();
      const bool in_chunks = streams();
      for (const owned_range<value_type>& range : store_->buckets().owned()) {
        const std::size_t most = in_chunks ? lesser_of(optimizer_memory().chunk, range.count) : range.count;
        if constexpr (has_master)
          call(f, range, 0, masters_.first(most), {range.gradient, most}, at);
        else
          call(f, range, 0, {range.value, most}, {range.gradient, most}, at);
      }
    }
  }

  template <class F>
  void change(F& f, const owned_range<value_type>& range, std::size_t offset, std::span<value_type> values,
              const number* gradients, [[maybe_unused]] number* masters, where at) {
    const std::size_t count = values.size();
    if (count == 0) return;
    if constexpr (has_master) {
      auto& kit = store_->run().engine().kit();
      kit.each(count, kernel::take_master<number, value_type>{masters, values.data()});
      call(f, range, offset, {masters, count}, {gradients, count}, at);
      kit.each(count, kernel::copy<number, value_type>{masters, values.data()});
    } else {
      call(f, range, offset, values, {gradients, count}, at);
    }
  }
  template <class F>
  void call(F& f, const owned_range<value_type>& range, std::size_t offset, std::span<number> values,
            std::span<const number> gradients, where at) {
    auto& engine = store_->run().engine();
    const std::string& name = store_->buckets().parameter(range.parameter).name();
    const std::size_t first = range.offset + offset;
    if constexpr (updates_in_frame<F, engine_type, value_type>) {
      const invocation of_update{"update", 0, 0, at};
      invocation_memory memory;
      {
        frame<engine_type> launches{engine, of_update, frame_mode::observing, memory};
        f(launches, name, values, gradients, first);
      }
      engine.activations().release(memory.kept);
      engine.activations().release(memory.remembered);
    } else {
      engine.run_on_host([&] { f(name, values, gradients, first); }, at);
    }
  }

  Store* store_;
  std::span<number> masters_;
  std::shared_ptr<streamed_type> streamed_;
  bool made_ = false;
};

}  // namespace belay::inline BELAY_ABI
