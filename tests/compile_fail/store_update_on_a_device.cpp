// expect: the host does not address this store's memory
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

// Of a device, as far as an update asks.
struct device_group {
  int rank() const;
  int size() const;
  void barrier(belay::where) const;
  const belay::rehearsal::group& control() const;
  std::span<std::byte> scratch() const;
  void fetch(void*, const void*, std::size_t, belay::where) const;
  void place(void*, const void*, std::size_t, belay::where) const;
};
static_assert(belay::works_on_device<device_group>);
struct device_store {
  using value_type = float;
  using run_type = ::run_type;
  using group_type = device_group;
};

void update() {
  auto on_host = [](const std::string&, std::span<float>, std::span<const float>, std::size_t) {};
  auto in_frame = [](auto&, const std::string&, std::span<float>, std::span<const float>, std::size_t) {};
  static_cast<void>(on_host), static_cast<void>(in_frame);
  using updates = belay::store_update<device_store>;
#ifdef BELAY_BROKEN
  static_assert(updates::takes<decltype(on_host)>());
#else
  static_assert(updates::takes<decltype(in_frame)>());
#endif
}
