// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The kernels of a device that does not exist. They are run by the loop of the host, and products by the host's kit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/backend/cuda.hpp"
#include "belay/device/kit.hpp"
#include "belay/kernel/rows.hpp"
#include "fakes/cuda/answering_library.hpp"

namespace fakes {

/// `compute(name, stream, work)` of the Device queues what is copied into `work`; where `backwards()`, an `each` takes
/// its indices from the last to the first.
template <class Device, class Stream, class Status>
class device_kernels : public answering_library<Device, Stream, Status> {
 public:
  using answering_library<Device, Stream, Status>::product;
  using stream_type = Stream;
  using status_type = Status;

  template <class F>
  status_type each(stream_type on, std::size_t count, const F& f) {
    return compute("each", on, [count, f, backwards = self().backwards()] {
      if (!backwards) return belay::kernel::for_each_index(count, f);
      std::size_t end = count;
      if constexpr (belay::kernel::packed<F>) {
        const std::size_t whole = f.packs() ? count / F::indices_of_pack * F::indices_of_pack : 0;
        for (; end > whole; --end) f(end - 1);
        for (; end > 0; end -= F::indices_of_pack) f.pack(end - F::indices_of_pack);
      }
      for (; end > 0; --end) f(end - 1);
    });
  }
  template <class G>
  status_type teams(stream_type on, std::size_t count, const G& g) {
    return compute("teams", on, [=] { belay::kernel::for_each_row(count, g); });
  }
  template <class C, class A, class B>
  status_type product(stream_type on, const belay::product_call<C, A, B>& call) {
    return compute("product", on, [call] { host_kit().product(call); });
  }
  template <belay::grouped_call Call>
  status_type grouped(stream_type on, const Call& call, const belay::kernel::findings_note& found) {
    return compute("grouped", on, [=] { host_kit().grouped(call, found); });
  }
  status_type histogram(stream_type on, std::span<std::byte>, belay::view<const std::int32_t, 1> values,
                        belay::view<std::int64_t, 1> counts) {
    return compute("histogram", on, belay::kernel::counted_values{values, counts});
  }
  /// The bytes that a sort takes of the kit's scratch memory, of each key.
  std::size_t sort_bytes_of_key = 0;
  [[nodiscard]] std::size_t sort_bytes(std::size_t keys, std::size_t) const noexcept {
    return keys * sort_bytes_of_key;
  }
  status_type sort(stream_type on, std::span<std::byte> room, belay::view<const std::int32_t, 1> keys,
                   std::size_t limit, belay::view<std::int32_t, 1> places) {
    if (sort_bytes(keys.size(), limit) > room.size()) return {"sort: too little room"};
    return compute("sort", on, belay::kernel::sorted_places{keys, limit, places});
  }
  status_type select(stream_type on, std::span<std::byte>, belay::view<const std::int32_t, 1> values,
                     belay::view<std::int32_t, 1> positions, std::int64_t* count) {
    return compute("select", on, belay::kernel::selected_positions{values, positions, count});
  }

 private:
  using host_kit = belay::host_kit<belay::immediate_stream>;

  [[nodiscard]] Device& self() noexcept { return static_cast<Device&>(*this); }
  template <class Work>
  status_type compute(const char* name, stream_type on, const Work& work) {
    return self().compute(name, on, work);
  }
};

}  // namespace fakes
