// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The NCCL backend over the real library: a trainer whose ranks have a card each is like one whose ranks share one, but
// for the order in which products add, and rows that they send to experts have its bits; and communicators take no more
// of a card than is planned for them. Without a device world and communicator are refused in one clear backend_error
// each.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm.hpp"
#include "belay/nccl.cuh"
#include "belay/train/launch.hpp"
#include "support/alike.hpp"
#include "support/card.hpp"
#include "unit/backend/exchanged_rows.hpp"
#include "unit/train/support/device_trainer.hpp"
#include "unit/train/support/graph_trainer.hpp"

namespace {

using api_type = belay::nccl::runtime_nccl;

using ordered =
    belay::nccl::rank<belay::host::rank, belay::cuda::runtime_api, api_type, belay::nccl::sums::fixed_order>;

// What a rank of several does, for the compiler: two ranks need two devices.
[[maybe_unused]] void train(belay::host::rank& control, const belay::cuda::device<belay::cuda::runtime_api>& gpu,
                            api_type& nccl, std::span<float> gradients) {
  ordered rank(control, gpu, nccl);
  belay::mesh mesh(rank, {.data = rank.size()});
  belay::cuda::stream<belay::cuda::runtime_api> compute(gpu);
  belay::pending sum = mesh.data().start_all_reduce(gradients, belay::sum, belay::after(compute.record()));
  std::move(sum).then(compute);
  mesh.data().reduce(gradients, belay::average, 0);
  compute.synchronize();
  {
    auto window = rank.make_window(*mesh.data().backend<ordered::group_type>(), 1 << 20);
    std::printf("%zu, %d ranks\n", window.take(1 << 10), window.reach());
  }
  rank.finish();
}

using device_trainer::result;

// As many ranks as there are cards, three at most; those that share one add in the same order.
bool trains(belay::cuda::runtime_api& api, const api_type& nccl, int ranks) {
  result apart, together;
  std::vector<belay::device_usage> told;
  belay::launch_options options;
  options.measured = [&](std::span<const belay::device_usage> usage) { told.assign(usage.begin(), usage.end()); };
  belay::launch(belay::nccl::world(api, nccl, belay::host::world(ranks)), device_trainer::body<3, float>(apart),
                options);
  belay::launch(belay::cuda::world(api, belay::host::world(ranks)), device_trainer::body<3, float>(together));
  const bool losses = test::alike("losses", together.losses, apart.losses, 1e-3);
  const bool norms = test::alike("norms", together.norms, apart.norms, 1e-3);
  const bool ok = apart.losses.size() == device_trainer::steps && losses && norms;
  std::printf("%d ranks with a card each: %s\n", ranks,
              ok ? "like ranks that share one" : "unlike ranks that share one");
  std::printf("%s", belay::device_usage_text(told).c_str());
  bool fits = told.size() == static_cast<std::size_t>(ranks);
  if (ranks == 1) return ok && fits;  // it has no communicator
  for (const belay::device_usage& each : told)
    fits = fits && each.communication > 0 && each.communication <= each.planned;
  if (!fits) std::printf("communicators take more than is planned for them\n");
  return ok && fits;
}
// The same of rows that go to experts and back.
bool sends_rows(belay::cuda::runtime_api& api, const api_type& nccl, int ranks) {
  const exchanged_rows::sizes of{5, 6, 2, 19, 13};
  const auto left = belay::freed_memory::as_it_was;
  const bool ok = exchanged_rows::on_world<float>(belay::nccl::world(api, nccl, belay::host::world(ranks)), of, left) ==
                  exchanged_rows::on_device<float>(api, ranks, of, left);
  std::printf("rows of %d ranks with a card each: %s\n", ranks, ok ? "the bits of ranks that share one" : "other bits");
  return ok;
}
// Steps that are launches have the losses of others, where parameters and gradients are divided.
bool captures(belay::cuda::runtime_api& api, const api_type& nccl, int ranks) {
  using belay::graph_use, belay::zero_stage;
  const graph_trainer::trial plain{.use = graph_use::none, .stage = zero_stage::parameters};
  const graph_trainer::trial captured{.stage = zero_stage::parameters, .overflows_in = 7};
  graph_trainer::record eager, launched;
  belay::launch(belay::nccl::world(api, nccl, belay::host::world(ranks)), graph_trainer::body<float>(plain, eager));
  belay::launch(belay::nccl::world(api, nccl, belay::host::world(ranks)),
                graph_trainer::body<float>(captured, launched));
  const bool ok = launched.same_numbers(eager) && launched.launches == 19;
  std::printf("%d ranks with a card each, steps as graphs: %s\n", ranks, ok ? "the same bits" : "other bits");
  return ok;
}
bool launches(const api_type& nccl, int devices) {
  belay::cuda::runtime_api api;
  try {
    const int ranks = devices == 0 ? 1 : std::min(devices, 3);
    const bool ok = trains(api, nccl, ranks) && captures(api, nccl, ranks) && sends_rows(api, nccl, ranks);
    return ok && devices > 0;
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    return devices == 0 && problem.about().call == "count_devices";
  }
}

int alone(const belay::nccl::library<api_type>& lib) {
  belay::nccl::unique_id id{};
  api_type::communicator_type made = nullptr;
  lib.expect(lib.api().make_id(id), "make_id", 0, belay::where::current());
  lib.expect(lib.api().init(made, 1, id, 0, belay::nccl::calls::blocking), "init", 0, belay::where::current());
  lib.expect(lib.api().destroy(made), "destroy", 0, belay::where::current());
  return 0;
}

}  // namespace

int main() {
  api_type nccl;
  const belay::nccl::library lib(nccl, 3);
  std::printf("NCCL %s\n", belay::nccl::version_text(lib.expect_version()).c_str());
  int devices = 0;
  const bool has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  if (!launches(nccl, has_device ? devices : 0)) return 1;
  try {
    return alone(lib);
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    const std::string what = problem.what();
    return !has_device && problem.about().call == "init" && problem.about().rank == 3 &&
                   what.find("rank 3: init: ncclCommInitRankConfig: ") != std::string::npos
               ? test::code_without_card()
               : 1;
  }
}
