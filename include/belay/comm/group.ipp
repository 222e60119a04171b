// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory of one rank of a group, to which peers send.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "belay/comm/fingerprint.hpp"
#include "belay/comm/group.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/error.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

// Memory of a group's device that no peer addresses, as of a rank alone: peers send into it. In a rehearsal it has the
// addresses of all ranks, since there each of them is looked up.
class single_rank_memory final : public group_interface {
 public:
  explicit single_rank_memory(group of)
      : group_interface(of.traits().rehearsed ? of.unasked_rank() : 0, of.traits().rehearsed ? of.size() : 1,
                        own_traits(of)),
        of_(std::move(of)) {}

  [[nodiscard]] int rank() const override { return of_.traits().rehearsed ? of_.rank() : 0; }
  [[nodiscard]] std::span<const int> members() const override {
    if (of_.traits().rehearsed) return of_.members();
    return of_.members().subspan(static_cast<std::size_t>(of_.unasked_rank()), 1);
  }
  void run(const op_call&) override {}
  [[nodiscard]] pending start(const op_call& call, const start_order&) override { refuse(call.at); }
  [[nodiscard]] pending start_composite(operation, const borrowed_work<const group_calls&>&,
                                        const start_order& how) override {
    refuse(how.at);
  }
  [[nodiscard]] pending start_local(operation, const borrowed_work<void*>&, const start_order& how) override {
    refuse(how.at);
  }
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at) override {
    return of_.make_symmetric(bytes, at);
  }
  [[nodiscard]] std::shared_ptr<group_interface> within(std::chrono::duration<double>, where) override {
    return std::make_shared<single_rank_memory>(of_);
  }
  void trace_into(span_log*, where) override {}
  [[nodiscard]] group_memory* device() override { return of_.device(); }

 private:
  [[nodiscard]] static group_traits own_traits(const group& of) {
    group_traits out = of.traits();
    out.addresses_peers = true;
    out.mirrors_peers = false;
    return out;
  }
  [[noreturn]] static void refuse(where at) {
    throw usage_error("memory of a rank alone: operations are started in the group of its peers", at);
  }

  group of_;
};

BELAY_DECL group ranks_of_heap(const group& of) {
  const group_traits traits = of.traits();
  const bool sends = traits.rehearsed ? traits.has_local_memory : traits.on_device;
  if (!sends || traits.addresses_peers) return of;
  return group(std::make_shared<single_rank_memory>(of));
}

}  // namespace belay::inline BELAY_ABI
