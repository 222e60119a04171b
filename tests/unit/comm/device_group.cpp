// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A group with the type of its device's streams: what is no device's is refused where kernels are queued, and kits say
// which type of groups a run has. What it does on devices is in tests/conformance.
#include "belay/comm/device_group.hpp"

#include <doctest/doctest.h>

#include <array>
#include <concepts>
#include <span>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/core/error.hpp"
#include "belay/device/kit.hpp"
#include "belay/kernel/elementwise.hpp"
#include "fakes/cuda/fake_api.hpp"

namespace {

using stream_type = belay::cuda::stream<fakes::device_api>;
using device_kit = belay::cuda::kit<fakes::device_api>;

static_assert(belay::communicator<belay::device_group<stream_type>> &&
              belay::works_on_device<belay::device_group<stream_type>> &&
              belay::tells_traits<belay::device_group<stream_type>>);
static_assert(std::same_as<belay::group_with_kit<belay::group, device_kit>::type, belay::device_group<stream_type>>);
static_assert(std::same_as<belay::group_with_kit<belay::group, belay::host_kit<>>::type, belay::group>);

}  // namespace

TEST_CASE("kernels for a device are refused by a group of the host, before anything is queued") {
  belay::host::world{2}.run([](belay::host::rank& rank) {
    const belay::device_group<stream_type> world = belay::group(rank.world());
    std::array<float, 1> of_rank{1};
    const std::span<float> value(of_rank);
    CHECK_THROWS_WITH_AS(world.each(1, belay::kernel::fill<float>{value.data(), 2}),
                         doctest::Contains("another device than that of the group"), belay::usage_error);
    CHECK_THROWS_AS(world.start_local(belay::operation::none, [](stream_type&) {}).wait(), belay::usage_error);
    CHECK(value[0] == 1);
    world.control().all_reduce(value, belay::sum);  // what needs no kernel goes on
    CHECK(value[0] == 2);
  });
}
