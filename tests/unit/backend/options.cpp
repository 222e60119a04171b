// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/options.hpp"

#include <doctest/doctest.h>

#include <cstdint>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"

namespace host = belay::host;

TEST_CASE("staging near the end of the address space is refused by the world's constructor, with the option's name") {
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 8191, SIZE_MAX / 2, SIZE_MAX / 4 + 1, std::size_t{1} << 61}) {
    CAPTURE(bytes);
    const host::world_options options{.algorithm = host::algorithm::staged, .staging_bytes = bytes};
    CHECK_THROWS_WITH_AS(static_cast<void>(host::checked_options(options, {})),
                         doctest::Contains(("staging_bytes: " + std::to_string(bytes)).c_str()), belay::size_error);
    CHECK_THROWS_AS((host::world{2, options}), belay::size_error);
    CHECK_THROWS_AS((host::processes{3, options}), belay::size_error);
  }
}

TEST_CASE("a control block whose numbers wrap round is larger than any memory, not small") {
  host::control_shape shape;
  shape.ranks = 4;
  const std::size_t small = host::control_block::bytes_for(shape);
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX / 8 + 1, SIZE_MAX - 4096}) {
    shape.staging_bytes = bytes;
    CHECK(host::control_block::bytes_for(shape) > belay::largest_size);
    shape.staging_bytes = 0;
    shape.group_bytes = SIZE_MAX;
    CHECK(host::control_block::bytes_for(shape) > belay::largest_size);
    shape.group_bytes = 0;
    CHECK(host::control_block::bytes_for(shape) == small);
  }
}
