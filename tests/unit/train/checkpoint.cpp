// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A run that ends and goes on from its checkpoint is the run that did not end: to the bit on the same ranks, within
// rounding on others. Damage is named with file, byte and tensor.
#include "unit/train/support/checkpoint.hpp"

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <string>

#include "test_length.hpp"
#include "unit/device/support/tier_file.hpp"

using namespace checkpoint_bench;

namespace {

settings in(const directory& dir, int ranks, std::size_t steps) {
  settings out;
  out.ranks = ranks;
  out.steps = steps;
  out.saved = {.folder = dir / "run", .every = 3, .keep = 2};
  return out;
}

std::string error_of(const settings& with) {
  try {
    train(with);
  } catch (const belay::error& problem) {
    return problem.what();
  }
  return "none";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("on the same ranks a resumed run has the bits of one that did not end, in every ZeRO stage") {
  for (const int ranks : {1, 2, 3}) {
    for (const auto zero : {belay::zero_stage::none, belay::zero_stage::optimizer_state, belay::zero_stage::gradients,
                            belay::zero_stage::parameters}) {
      if (only_a_sample() && (ranks == 1) != (zero == belay::zero_stage::none)) continue;
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(zero));
      const directory dir;
      settings whole = in(dir, ranks, 5);
      whole.zero = zero;
      settings first = whole, second = whole;
      whole.saved.folder = "";
      first.steps = 3;
      const record expected = train(whole);
      train(first);
      const record got = train(second);
      CHECK(got.from.step == 3);
      CHECK(got.next_sample == 5 * global_micro_batches);
      CHECK(apart(expected.at.at(3), got.at.at(3)) == 0);
      CHECK(apart(expected.at.at(5), got.at.at(5)) == 0);
      REQUIRE(got.losses.size() == 2);
      CHECK(got.losses[0] == expected.losses[3]);
      CHECK(got.losses[1] == expected.losses[4]);
      CHECK(apart(expected.at.at(3), expected.at.at(5)) > 1e-6);  // it could tell them apart
    }
  }
}

TEST_CASE("on other ranks, in another stage or type, a resumed run loads the same state") {
  const directory dir;
  settings first = in(dir, 2, 3);
  const record expected = train(first);
  for (const int ranks : {1, 3, 4}) {
    for (const auto zero : {belay::zero_stage::none, belay::zero_stage::parameters}) {
      CAPTURE(ranks);
      settings second = in(dir, ranks, 3);
      second.zero = zero;
      const record got = train(second);
      CHECK(got.from.step == 3);
      CHECK(apart(expected.at.at(3), got.at.at(3)) == 0);
    }
  }
  // Narrower: values are rounded, master copies and moments are not.
  settings narrow = in(dir, 3, 3);
  const record rounded = train<belay::bf16>(narrow);
  for (const auto& [name, values] : expected.at.at(3)) {
    CAPTURE(name);
    const auto& now = rounded.at.at(3).at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool is_value = name.starts_with("value");
      const float wanted = is_value ? static_cast<float>(belay::bf16(values[i])) : values[i];
      if (now[i] != wanted) FAIL("element " << i << " is " << now[i] << ", not " << wanted);
    }
  }
  CHECK(rounded.at.at(3).at("master wide") == expected.at.at(3).at("value wide"));
}

TEST_CASE("a rank reads of a checkpoint what it keeps on its own mesh, and no more") {
  const directory dir;
  train(in(dir, 4, 3));
  std::uint64_t files = 0;
  for (const auto& each : std::filesystem::directory_iterator(dir / "run/step-00000003"))
    if (each.path().extension() == ".safetensors") files += each.file_size();
  const auto read_by_first_of = [&](int ranks) {
    settings elsewhere = in(dir, ranks, 3);
    elsewhere.zero = belay::zero_stage::parameters;
    return train(elsewhere).from.bytes_read;
  };
  CHECK(read_by_first_of(1) == files);  // each chunk once
  const std::uint64_t half = read_by_first_of(2);
  CHECK(half > files / 2 - files / 20);
  CHECK(half < files * 2 / 3);  // a chunk is read as a whole
}

TEST_CASE("state of the optimizer in a tier's file is saved from there and loaded into it, from and to any tier") {
  const tier_files::folder scratch;
  const belay::optimizer_memory in_file{belay::tier::file, scratch.path, 4 * belay::parameter_chunk};
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const directory dir;
    settings whole = in(dir, ranks, 5);
    settings first = whole, second = whole;
    whole.saved.folder = "";
    first.steps = 3;
    first.memory = second.memory = in_file;
    const record expected = train<belay::bf16>(whole);
    train<belay::bf16>(first);
    CHECK(text_of(dir / "run/step-00000003/manifest.json").size() < 8000);  // a piece for each range, of any chunks
    settings elsewhere = in(dir, 3, 3);
    elsewhere.zero = belay::zero_stage::parameters;
    for (const belay::optimizer_memory& memory : {in_file, belay::optimizer_memory{belay::tier::pinned}}) {
      elsewhere.memory = memory;
      CHECK(apart(expected.at.at(3), train<belay::bf16>(elsewhere).at.at(3)) == 0);
    }
    CHECK(apart(expected.at.at(5), train<belay::bf16>(second).at.at(5)) == 0);
    CHECK(scratch.empty());
  }
  const directory dir;
  settings pinned = in(dir, 2, 3);
  pinned.memory = {belay::tier::pinned};
  const record expected = train(pinned);
  settings file = in(dir, 3, 3);
  file.memory = in_file;
  CHECK(apart(expected.at.at(3), train(file).at.at(3)) == 0);
}

TEST_CASE("parameters in a tier's file are saved from there and loaded into it, and from and into memory") {
  const tier_files::folder scratch;
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const directory dir;
    settings whole = in(dir, ranks, 5);
    whole.zero = belay::zero_stage::parameters;
    settings first = whole, second = whole;
    whole.saved.folder = "";
    first.steps = 3;
    first.parameters = second.parameters = scratch.path;
    const record expected = train(whole);
    train(first);
    for (const bool in_file : {true, false}) {
      settings elsewhere = in(dir, 3, 3);
      elsewhere.zero = belay::zero_stage::parameters;
      elsewhere.parameters = in_file ? scratch.path : "";
      CHECK(apart(expected.at.at(3), train(elsewhere).at.at(3)) == 0);
    }
    CHECK(apart(expected.at.at(5), train(second).at.at(5)) == 0);
    CHECK(scratch.empty());
  }
  const directory dir;
  const record expected = train(in(dir, 2, 3));
  settings file = in(dir, 3, 3);
  file.zero = belay::zero_stage::parameters;
  file.parameters = scratch.path;
  CHECK(apart(expected.at.at(3), train(file).at.at(3)) == 0);
}

TEST_CASE("a tier's file that cannot be read costs a checkpoint that is named, and not the run") {
  using calls = tier_files::by_thread::calls;
  const tier_files::calm before;
  const tier_files::folder scratch;
  for (const std::size_t ring_bytes : {std::size_t{0}, std::size_t{8} << 20U}) {
    const directory dir;
    settings with = in(dir, 1, 8);
    with.saved.every = 2;
    with.saved.keep = 0;
    with.saved.ring_bytes = ring_bytes;
    with.memory = {belay::tier::file, scratch.path, 4 * belay::parameter_chunk, belay::file_access::thread};
    // The second moments of the first chunk: no update begins to read there. The apply of step 5 is over when all of
    // the checkpoint of step 4 was read.
    constexpr std::int64_t second = 4 * belay::parameter_chunk * sizeof(float);
    tier_files::now.result = -EIO;
    with.before_commit = [&](int, std::size_t step) {
      tier_files::now.bad_offset = step == 4 || step == 5 ? second : -1;
    };
    const record got = train<float, belay::posix_files, calls>(with);
    REQUIRE(got.problems.size() == 1);
    CHECK(contains(got.problems[0], scratch.path));
    CHECK(contains(got.problems[0], "from byte 65536 on"));
    CHECK(names_in(dir / "run") == std::vector<std::string>{"step-00000002", "step-00000006", "step-00000008"});
    with.saved.folder = "";
    CHECK(train(with).losses == got.losses);
    settings again = in(dir, 2, 8);
    CHECK(apart(train(again).at.at(8), got.at.at(8)) == 0);
  }
}

TEST_CASE("the masters of a narrow run are the values of a wide one") {
  const directory dir;
  settings first = in(dir, 2, 3);
  const record expected = train<belay::bf16>(first);
  const record got = train(in(dir, 3, 3));
  CHECK(got.at.at(3).at("value wide") == expected.at.at(3).at("master wide"));
  CHECK(got.at.at(3).at("first_moment wide") == expected.at.at(3).at("first_moment wide"));
  CHECK(got.at.at(3).at("value base") == expected.at.at(3).at("value base"));
}

TEST_CASE("weights alone come with a fresh optimizer") {
  const directory dir;
  const record expected = train(in(dir, 2, 3));
  settings second = in(dir, 1, 3);
  second.from = belay::resume_from::newest_weights;
  const record got = train(second);
  CHECK(got.at.at(3).at("value wide") == expected.at.at(3).at("value wide"));
  for (const float each : got.at.at(3).at("first_moment wide")) REQUIRE(each == 0);
  CHECK(got.next_sample == 0);
}

TEST_CASE("the newest are kept, and a folder is one run's") {
  const directory dir;
  train(in(dir, 3, 13));
  CHECK(names_in(dir / "run") == std::vector<std::string>{"step-00000009", "step-00000012"});
  settings again = in(dir, 3, 14);
  again.from = belay::resume_from::nothing;
  CHECK(contains(error_of(again), "has checkpoints, the newest of step 12"));
  again.from = belay::resume_from::newest;
  CHECK(train(again).from.step == 12);
  // What is not committed, or not ours.
  std::filesystem::create_directory(dir / "run/step-00000013");
  overwrite(dir / "run/step-00000013/parameters-00000.safetensors", "half");
  std::filesystem::create_directory(dir / "run/notes");
  overwrite(dir / "run/step-00000012/notes.txt", "mine");
  CHECK(train(again).from.step == 12);
  CHECK(names_in(dir / "run") == std::vector<std::string>{"notes", "step-00000009", "step-00000012"});
  const belay::checkpoint_folder<> held = [&] {
    belay::checkpoint_folder<> out(dir / "run");
    out.lock();
    return out;
  }();
  CHECK(contains(error_of(again), "another run writes its checkpoints there"));
}

TEST_CASE("a request to stop ends all ranks with one step's checkpoint") {
  const directory dir;
  const belay::stop_request stop;
  settings first = in(dir, 3, 50);
  first.saved.every = 0;
  first.saved.stop = &stop;
  first.before_commit = [&](int rank, std::size_t step) {
    if (rank == 1 && step == 4) ::raise(SIGTERM);
  };
  const record stopped = train(first);
  CHECK(stop.followed());
  CHECK(stopped.losses.size() == 4);
  CHECK(names_in(dir / "run") == std::vector<std::string>{"step-00000004"});
  CHECK(train(in(dir, 2, 4)).from.step == 4);
}

TEST_CASE("damage is named with the file, the byte and the tensor, and nothing half-read is trained on") {
  const directory dir;
  train(in(dir, 2, 6));
  const std::string folder = dir / "run/step-00000006/";
  const std::string wide = folder + "parameters-00000.safetensors";
  const std::string sound = text_of(wide);
  REQUIRE(sound.size() > belay::checkpoint_chunk / 2);
  const settings again = in(dir, 3, 6);
  {
    std::string damaged = sound;
    damaged[sound.size() / 2] = static_cast<char>(damaged[sound.size() / 2] ^ 1);
    overwrite(wide, damaged);
    const std::string said = error_of(again);
    CAPTURE(said);
    CHECK(contains(said, "parameters-00000.safetensors"));
    CHECK(contains(said, "do not match their checksum"));
    CHECK(contains(said, "value of tensor wide"));
    CHECK(contains(said, "rank "));
  }
  {
    overwrite(wide, sound.substr(0, sound.size() - 5));
    CHECK(contains(error_of(again), "its checkpoint says " + std::to_string(sound.size())));
  }
  {
    std::filesystem::remove(wide);
    CHECK(contains(error_of(again), "parameters-00000.safetensors: cannot be opened"));
  }
  {
    overwrite(wide, text_of(dir / "run/step-00000003/parameters-00000.safetensors"));
    CHECK(contains(error_of(again), "of step 000000000003"));
  }
  overwrite(wide, sound);
  CHECK(train(again).from.step == 6);
  {
    std::string text = text_of(folder + "manifest.json");
    text.replace(text.find("\"step\":6"), 8, "\"step\":7");
    overwrite(folder + "manifest.json", text);
    CHECK(contains(error_of(again), "does not match its checksum"));
  }
}
