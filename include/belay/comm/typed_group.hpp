// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A backend's own group behind the interface of `belay::group`.
// IWYU pragma: private, include "belay/comm/group.hpp"
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "belay/comm/call_guard.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/group.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

// A composite's calls of a backend.
template <class Calls>
class composite_runner final : public operation_runner {
 public:
  explicit composite_runner(const Calls& of) noexcept : of_(&of) {}
  void run(const op_call& call) override { of_->run_call(call); }

 private:
  const Calls* of_;
};

// Copies of a group of a device.
template <class G>
class copies_of_device final : public group_memory {
 public:
  explicit copies_of_device(const G& of) noexcept : of_(&of) {}
  void fetch(void* to, const void* from, std::size_t bytes, const start_order& how) override {
    if constexpr (requires { of_->fetch(to, from, bytes, how); })
      of_->fetch(to, from, bytes, how);
    else
      of_->fetch(to, from, bytes, how.at);
  }
  void place(void* to, const void* from, std::size_t bytes, where at) override { of_->place(to, from, bytes, at); }
  [[nodiscard]] std::span<std::byte> scratch() override { return of_->scratch(); }
  [[nodiscard]] const std::type_info& stream_type() const noexcept override {
    return typeid(of_->stream_of_calls(where::current()));
  }
  [[nodiscard]] void* stream(where at) override { return &of_->stream_of_calls(at); }

 private:
  const G* of_;
};
// Copies and kernels of a composite in memory of a device.
template <class Calls>
class copies_of_composite final : public group_memory {
 public:
  explicit copies_of_composite(const Calls& of) noexcept : of_(&of) {}
  void fetch(void* to, const void* from, std::size_t bytes, const start_order& how) override {
    if constexpr (requires { of_->fetch(to, from, bytes, how.at); })
      of_->fetch(to, from, bytes, how.at);
    else
      throw usage_error("the host waits for nothing that this composite queues: fetch before it is started", how.at);
  }
  void place(void* to, const void* from, std::size_t bytes, where at) override { of_->place(to, from, bytes, at); }
  [[nodiscard]] std::span<std::byte> scratch() override { return {}; }
  [[nodiscard]] const std::type_info& stream_type() const noexcept override { return typeid(of_->stream()); }
  [[nodiscard]] void* stream(where) override { return &of_->stream(); }

 private:
  const Calls* of_;
};
struct no_group_memory {
  explicit no_group_memory(const auto&) noexcept {}
};

// Work of a rank alone, as a group starts it: on a device it is given the stream.
template <class G>
inline constexpr bool starts_work_of_its_own = can_start_local<G, void (*)()> || requires(const G& of, where at) {
  requires can_start_local<G, void (*)(decltype(of.stream_of_calls(at)))>;
};

template <class G>
[[nodiscard]] constexpr group_traits traits_of() noexcept {
  group_traits out;
  out.rehearsed = moves_nothing<G>;
  out.sums_in_rank_order = sums_in_rank_order<G>;
  out.sums_alike = sums_alike<G>;
  out.has_varying_counts = has_varying_counts<G>;
  out.addresses_peers = directly_addressable<G>;
  out.mirrors_peers = mirrored_by_messages<G>;
  out.has_local_memory = has_local_memory<G>;
  out.on_device = works_on_device<G>;
  out.starts_local_work = starts_work_of_its_own<G>;
  if constexpr (requires { G::takes_device_memory_alone; }) out.device_memory_alone = G::takes_device_memory_alone;
  if constexpr (requires { G::meets_on_host; }) out.meets_on_host = G::meets_on_host;
  if constexpr (requires { G::is_captured; }) out.is_captured = G::is_captured;
  return out;
}

// A rehearsal's group has the promises of the world that will run.
template <class G>
[[nodiscard]] constexpr group_traits traits_told([[maybe_unused]] const G& of) noexcept {
  if constexpr (requires { of.promises(); })
    return of.promises();
  else
    return traits_of<G>();
}

template <class G>
class typed_group final : public group_interface {
 public:
  explicit typed_group(G of)
      : group_interface(layout_rank(of), of.size(), traits_told(of)), of_(std::move(of)), memory_(of_) {
    if constexpr (works_on_device<G>) control_.emplace(of_.control());
  }

  [[nodiscard]] int rank() const override { return of_.rank(); }
  [[nodiscard]] std::span<const int> members() const override { return of_.members(); }

  void run(const op_call& call) override { of_.run_call(call); }
  [[nodiscard]] pending start(const op_call& call, const start_order& how) override {
    return of_.start_call(call, how);
  }
  [[nodiscard]] pending start_composite(operation what, const borrowed_work<const group_calls&>& work,
                                        const start_order& how) override {
    const auto run = [kept = kept_work<const group_calls&>(work)](const auto& calls) { call_with(kept, calls); };
    return of_.start_composite(what, run, how);
  }
  [[nodiscard]] pending start_local(operation what, const borrowed_work<void*>& work, const start_order& how) override {
    const kept_work<void*> kept(work);
    if constexpr (can_start_local<G, void (*)()>)
      return of_.start_local(what, [kept] { kept(nullptr); }, how);
    else if constexpr (starts_work_of_its_own<G>)
      return of_.start_local(what, [kept](auto& stream) { kept(&stream); }, how);
    else
      throw usage_error("this group starts no work of a rank alone: queue it on a stream of the device", how.at);
  }
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at) override {
    if constexpr (directly_addressable<G>) {
      return of_.make_symmetric(bytes, at);
    } else if constexpr (mirrored_by_messages<G>) {
      of_.agree_symmetric(bytes, at);
      return symmetric_region::map(size(), bytes, backing::when_touched, at);
    } else if constexpr (has_local_memory<G>) {
      return of_.local_memory().make_symmetric(bytes, at);
    } else {
      throw usage_error("ranks of this group have no memory that they share", at);
    }
  }
  [[nodiscard]] std::shared_ptr<group_interface> within(std::chrono::duration<double> timeout, where at) override {
    if constexpr (requires { of_.within(timeout, at); })
      return std::make_shared<typed_group>(of_.within(timeout, at));
    else
      return std::make_shared<typed_group>(of_);  // nobody is waited for
  }
  void trace_into([[maybe_unused]] span_log* log, [[maybe_unused]] where at) override {
    if constexpr (requires { of_.trace_into(log, at); })
      of_.trace_into(log, at);
    else if constexpr (requires { of_.trace_into(log); })
      of_.trace_into(log);
  }
  [[nodiscard]] call_guard* guard() const override {
    if constexpr (requires { of_.guard(); })
      return &of_.guard();
    else
      return nullptr;
  }
  [[nodiscard]] group_memory* device() override {
    if constexpr (works_on_device<G>)
      return &memory_;
    else
      return nullptr;
  }
  [[nodiscard]] const group* control() const override { return control_ ? &*control_ : nullptr; }

  /// The backend's group.
  [[nodiscard]] const G& of() const noexcept { return of_; }

 private:
  template <class Calls>
  static void call_with(const kept_work<const group_calls&>& work, const Calls& calls) {
    composite_runner<Calls> own(calls);
    if constexpr (requires { calls.control(); }) {
      composite_runner runner(calls.control());
      const group_calls control(runner, calls.rank(), calls.size());
      copies_of_composite<Calls> memory(calls);
      work(group_calls(own, calls.rank(), calls.size(), &control, &memory));
    } else {
      work(group_calls(own, calls.rank(), calls.size()));
    }
  }

  G of_;
  [[no_unique_address]] std::conditional_t<works_on_device<G>, copies_of_device<G>, no_group_memory> memory_;
  std::optional<group> control_;  // of a device's
};

}  // namespace belay::inline BELAY_ABI
