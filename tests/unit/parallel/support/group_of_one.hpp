// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A group of one rank whose symmetric memory is what a test gives it, of whatever kind.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

#include "belay/comm/group.hpp"
#include "belay/comm/group_interface.hpp"

namespace test {

class group_of_one final : public belay::group_interface {
 public:
  explicit group_of_one(std::span<std::byte> memory, const belay::group_traits& promises = usual_traits())
      : group_interface(0, 1, promises), memory_(memory) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] std::span<const int> members() const override { return {&only_, 1}; }
  void run(const belay::op_call&) override {}
  [[nodiscard]] belay::pending start(const belay::op_call&, const belay::start_order& how) override { refuse(how); }
  [[nodiscard]] belay::pending start_composite(belay::operation, const belay::borrowed_work<const belay::group_calls&>&,
                                               const belay::start_order& how) override {
    refuse(how);
  }
  [[nodiscard]] belay::pending start_local(belay::operation, const belay::borrowed_work<void*>&,
                                           const belay::start_order& how) override {
    refuse(how);
  }
  [[nodiscard]] belay::symmetric_region make_symmetric(std::size_t bytes, belay::where at) override {
    if (bytes > memory_.size()) throw belay::budget_error("memory of a test", bytes, memory_.size(), at);
    return belay::symmetric_region::adopt(1, memory_.size(), memory_.data(), nullptr, [](void*) noexcept {});
  }
  [[nodiscard]] std::shared_ptr<group_interface> within(std::chrono::duration<double>, belay::where) override {
    return std::make_shared<group_of_one>(memory_, traits());
  }
  void trace_into(belay::span_log*, belay::where) override {}

  static belay::group_traits usual_traits() {
    belay::group_traits out;
    out.has_varying_counts = true;
    out.addresses_peers = true;
    return out;
  }

 private:
  [[noreturn]] static void refuse(const belay::start_order& how) {
    throw belay::usage_error("a rank alone starts nothing", how.at);
  }

  std::span<std::byte> memory_;
  int only_ = 0;
};

template <class Memory>
belay::group group_over(const Memory& memory) {
  return belay::group(std::make_shared<group_of_one>(std::span<std::byte>(memory.data(), memory.size_bytes())));
}

}  // namespace test
