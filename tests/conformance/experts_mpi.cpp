// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <mpi.h>

#include <string>

#include "conformance/experts.hpp"
#include "conformance/mpi_ranks.hpp"
#include "unit/train/support/experts_trainer.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_experts, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_experts_host, conformance::mpi_ranks);

// What a dispatch keeps of where its rows are comes back elsewhere, and ranks that reach no peer read it there.
TEST_CASE("experts on four ranks of MPI have the bits of threads, also where activations have left the device") {
  int number = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &number);
  for (const belay::tier left_for : {belay::tier::device, belay::tier::host}) {
    CAPTURE(std::string(name(left_for)));
    const experts_trainer::settings trains{.shape = {.data = 2, .expert = 2}, .activations = left_for};
    experts_trainer::result out, expected;
    if (number == 0) expected = experts_trainer::on_host<float>(4, trains);
    belay::launch<belay::host_kit<>>(belay::mpi::world{},
                                                                    experts_trainer::body<float>(out, trains));
    if (number != 0) continue;
    REQUIRE(expected.losses.size() == experts_trainer::steps);
    CHECK(expected.room > trains.capacity);  // a step came again
    CHECK(out == expected);
  }
}
