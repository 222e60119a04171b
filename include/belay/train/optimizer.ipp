// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// AdamW out of its class: a program links that over stores of ranks of the host, and compiles others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/hash.hpp"
#include "belay/kernel/optimizer.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/optimizer/offloaded_state.hpp"
#include "belay/train/optimizer/update.hpp"

namespace belay::inline BELAY_ABI {

template <class T, class Group, class Kit, tier_file_calls Files>
template <class Store>
  requires std::same_as<typename Store::buckets_type, gradient_buckets<T, Group>>
adamw<T, Group, Kit, Files>::adamw(Store& store, adamw_settings settings, const optimizer_memory& memory, where at)
    : adamw(settings, store.buckets(), lease_state(store, memory, at)) {
  own_kit_.reset();
  kit_ = &store.run().engine().kit();
  if (tier_ == tier::device) access_ = store.run().engine().access(at);
  if constexpr (works_on_device<Group>) {
    numbers_.make(store.run(), at);
    table_ = &store.division()->table();
  }
  if (store.run().engine().step_number() > 0) store.ask_shards();  // the peak of a step was without this shard
  const bool here =
      store.run().computes() == computes_on::host ? !shards_in_file() : !has_lower_shards(buckets_->layout());
  if (memory.state != tier::device || !here) offload(store, memory, at);
}

template <class T, class Group, class Kit, tier_file_calls Files>
adamw<T, Group, Kit, Files>::adamw(const adamw_settings& settings, gradient_buckets<T, Group>& buckets,
                                   const leased_state& state)
    : settings_(settings), buckets_(&buckets), state_(state.memory), tier_(state.where_it_is) {
  if constexpr (std::default_initializable<Kit>) own_kit_ = std::make_unique<Kit>();
  const kernel::fill<state_type> zeros{state_.data(), 0};
  const auto on_host = [&] { kernel::for_each_index(state_.size(), zeros); };
  if constexpr (works_on_device<Group>)
    tier_ == tier::device ? buckets.any_group().each(state_.size(), zeros, where::current()) : on_host();
  else if (!buckets.rehearsed())
    on_host();
}

template <class T, class Group, class Kit, tier_file_calls Files>
std::size_t adamw<T, Group, Kit, Files>::state_elements(const gradient_buckets<T, Group>& buckets) noexcept {
  std::size_t owned = 0;
  for (const owned_range<T>& range : buckets.owned()) owned += range.count;
  return adamw_state_parts<T> * owned;
}

template <class T, class Group, class Kit, tier_file_calls Files>
void adamw<T, Group, Kit, Files>::apply_part(const step_summary& summary, const update& with,
                                             function_ref<reduced_gradients<T>()> take, where at) {
  check_update(with, at);
  settings_.learning_rate = with.learning_rate;
  const gradient_norm_value norm{summary.norm};
  const clip_factor clip = is_finite(with.clip) ? norm.clip(with.clip) : clip_factor::none();
  update_owned(summary.number, take(), clip, at);
  buckets_->updates().note_update(fnv1a().add(bits_of(with.learning_rate)).add(bits_of(with.clip)).value());
}

template <class T, class Group, class Kit, tier_file_calls Files>
void adamw<T, Group, Kit, Files>::refuse_part(where at) {
  throw usage_error("these gradients were applied before, or belong to another store", at);
}

template <class T, class Group, class Kit, tier_file_calls Files>
auto adamw<T, Group, Kit, Files>::expect_size(std::span<state_type> state, const gradient_buckets<T, Group>& buckets,
                                              where at) -> std::span<state_type> {
  if (state.size() == state_elements(buckets)) return state;
  throw usage_error("the optimizer's state has " + std::to_string(state_elements(buckets)) +
                        " elements, the memory given has " + std::to_string(state.size()),
                    at);
}

template <class T, class Group, class Kit, tier_file_calls Files>
void adamw<T, Group, Kit, Files>::update_owned(std::uint64_t number, reduced_gradients<T>&& gradients, clip_factor clip,
                                               where at) {
  if (number <= last_token_)
    throw usage_error("the token of step " + std::to_string(number) + " after that of step " +
                          std::to_string(last_token_) + ": each committed step is applied once, in order",
                      at);
  if (gradients.number() == 0 || gradients.owned().data() != buckets_->owned().data())
    throw usage_error("these gradients were applied before, or belong to other buckets", at);
  gradients.expect_latest(at);
  buckets_->updates().before_update(at);
  const std::span<const owned_range<T>> owned = gradients.consume(at);
  last_token_ = number;
  ++steps_;
  if (buckets_->rehearsed()) return;
  adamw_settings plain = settings_;
  plain.decay = 0;
  const auto decayed = kernel::adamw_at_step<state_type>(settings_, steps_, clip.value());
  const auto undecayed = kernel::adamw_at_step<state_type>(plain, steps_, clip.value());
  Kit& kit = kit_ != nullptr ? *kit_ : *own_kit_;
  if constexpr (works_on_device<Group>) {
    if (numbers_.memory != nullptr) {
      const offloaded_scalars in{{&numbers_.memory->decayed}, {&numbers_.memory->undecayed}};
      const auto queue = [&] {
        if (update_offloaded_) return update_offloaded_(*this, in, at);
        queue_update<T>(kit, *buckets_, *table_, state_, in.decayed, in.undecayed, at);
      };
      numbers_.write({decayed, undecayed}, at);
      update_observer* const queues = buckets_->updates().last(observer_turn::queues_work);
      return queues != nullptr ? queues->queue_update(this, queue, at) : queue();
    }
  } else if (update_offloaded_) {
    return update_offloaded_(*this, {decayed, undecayed}, at);
  }
  queue_update<T>(kit, *buckets_, owned, state_, decayed, undecayed, at_once, at);
}

template <class T, class Group, class Kit, tier_file_calls Files>
bool adamw<T, Group, Kit, Files>::shards_in_file() const noexcept {
  return buckets_->value_file() != nullptr || buckets_->gradient_file() != nullptr;
}

template <class T, class Group, class Kit, tier_file_calls Files>
template <class Store>
auto adamw<T, Group, Kit, Files>::lease_state(Store& store, const optimizer_memory& memory, where at) -> leased_state {
  if (memory.state == tier::file) return {{}, tier::file};
  const auto elements_of = [&](int rank) { return adamw_state_parts<T> * store.owned_elements(rank); };
  return {store.run().template lease_shard<state_type>(memory.state, elements_of, "optimizer state", at), memory.state};
}

template <class T, class Group, class Kit, tier_file_calls Files>
template <class Store>
void adamw<T, Group, Kit, Files>::offload(Store& store, const optimizer_memory& memory, where at) {
  if (memory.chunk == 0 || memory.chunk % parameter_chunk != 0)
    throw usage_error("state streams in chunks of " + std::to_string(memory.chunk) +
                          " elements: these are a multiple of " + std::to_string(parameter_chunk),
                      at);
  auto& run = store.run();
  const bool in_file = memory.state == tier::file;
  const file_medium medium = in_file ? medium_of<Files>(memory.folder, at) : file_medium{};
  const std::size_t alignment = in_file ? medium.alignment : 0;
  const bool on_device = belay::on_device(run.computes());
  const state_layout sizes(memory.state, run.computes(), memory.chunk, adamw_state_parts<T>, sizeof(state_type),
                           sizeof(T), alignment);
  if (in_file)
    run.charge_shard(
        tier::file, [&](int rank) { return sizes.file_bytes(store.owned_elements(rank)); }, "optimizer state",
        medium.in_memory ? file_bytes::in_memory : file_bytes::on_disk);
  const bool in_host = in_file || memory.state == tier::device;
  const auto lease_ring = [&](tier in) {
    return run.template lease_shard<std::byte>(
        in, [&](int rank) { return sizes.ring_bytes(store.owned_elements(rank)); }, "optimizer ring", at);
  };
  const std::span<std::byte> ring = lease_ring(on_device ? tier::device : in_host ? tier::host : memory.state);
  std::span<std::byte> beside;
  if (on_device && in_file) beside = lease_ring(tier::host);
  std::span<kernel::chunked_range> table;
  if (on_device) {
    const auto rows_of = [&](int rank) {  // the end of a chunk cuts a range at most
      return store.owned_ranges(rank) + sizes.chunks_of(store.owned_elements(rank));
    };
    table = run.template lease_shard<kernel::chunked_range>(tier::device, rows_of, "ranges of chunks", at);
  }
  if (!buckets_->rehearsed()) {
    auto& engine = run.engine();
    static_cast<void>(engine.copies());  // its thread is there before the first step
    const slot_contents free = engine.poisons() ? slot_contents::poisoned : slot_contents::kept;
    std::vector<bucket_copies> copied =
        copies_of_buckets(*buckets_, [&](tier in) { return (in == tier::device) != on_device; });
    offloaded_ = std::make_shared<offloaded_type>(buckets_->owned(), state_elements(*buckets_) / adamw_state_parts<T>,
                                                  std::move(copied), memory, sizes, state_, ring, beside, free, at);
    run.keep(offloaded_);
    if constexpr (works_on_device<Group>) {
      const std::vector<kernel::chunked_range> rows = offloaded_->describe(table.data());
      if (!rows.empty()) engine.access(at)->place(table.data(), rows.data(), rows.size() * sizeof rows[0], at);
      update_offloaded_ = [&engine](adamw& self, const offloaded_scalars& scalars, where now) {
        const auto computes = [&](kernel::chunked_ranges ranges, std::size_t chunks, state_type* state,
                                  std::size_t part) {
          engine.kit().teams(
              chunks, kernel::adamw_of_ranges<state_type, T>{ranges, state, part, scalars.decayed, scalars.undecayed});
        };
        self.offloaded_->update(engine, *self.buckets_, computes, now);
      };
    } else {
      update_offloaded_ = [&engine](adamw& self, const offloaded_scalars& scalars, where now) {
        const auto computes = [&](const owned_range<T>& range, std::size_t, T* value, const state_type* gradient,
                                  const auto& state, std::size_t count) {
          const scalars_type& used = range.decay == weight_decay::yes ? scalars.decayed : scalars.undecayed;
          queue_adamw(engine.kit(), value, gradient, state, count, used, at_once);
        };
        self.offloaded_->update(engine, *self.buckets_, computes, now);
      };
    }
  }
}

template <class T, class Group, class Kit, tier_file_calls Files>
adamw<T, Group, Kit, Files>::adamw(adamw&&) noexcept = default;

template <class T, class Group, class Kit, tier_file_calls Files>
auto adamw<T, Group, Kit, Files>::operator=(adamw&&) noexcept -> adamw& = default;

template <class T, class Group, class Kit, tier_file_calls Files>
adamw<T, Group, Kit, Files>::~adamw() = default;

}  // namespace belay::inline BELAY_ABI
