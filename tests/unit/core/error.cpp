// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/error.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace belay;

namespace {

bool contains(const char* text, const std::string& part) { return std::string(text).find(part) != std::string::npos; }

}  // namespace

TEST_CASE("every error is caught as belay::error and begins with its site") {
  const where at{"trainer.cpp", "main", 42};
  try {
    throw usage_error("the shapes differ", at);
  } catch (const error& caught) {
    CHECK(std::string(caught.what()) == "trainer.cpp:42: belay: the shapes differ");
    CHECK(caught.at().line == 42);
  }
  CHECK_THROWS_AS(throw input_error("no such flag"), error);
  CHECK_THROWS_AS(throw budget_error("device", 1, 0, at), error);
  CHECK_THROWS_AS(throw file_error("a", 0, "short"), error);
}

TEST_CASE("an error about outside input needs no site and does not invent one") {
  CHECK(std::string(input_error("--steps: not a number").what()) == "belay: --steps: not a number");
}

TEST_CASE("a refused allocation says tier, bytes asked and bytes left") {
  const budget_error refused("device", 4096, 512, {"plan.cpp", "", 7});
  CHECK(refused.requested_bytes() == 4096);
  CHECK(refused.available_bytes() == 512);
  CHECK(contains(refused.what(), "device tier: 4096 bytes requested, 512 bytes left"));
}

TEST_CASE("a file error names the file and the byte") {
  const file_error damaged("model.safetensors", 1234567890123, "the header is not JSON");
  CHECK(damaged.path() == "model.safetensors");
  CHECK(damaged.offset() == 1234567890123);
  CHECK(contains(damaged.what(), "model.safetensors: the header is not JSON (byte 1234567890123)"));
  // Where it is about the file as such, no byte is named.
  CHECK(std::string(file_error("a.json", 0, "cannot be read").what()) == "belay: a.json: cannot be read");
  CHECK(damaged.rank() == file_error::no_rank);
  // Where all ranks are told what one met, it is named, and the parts are as they were given.
  const file_error told("a\nb", 8, "ends \x1b[m early", {}, 3);
  CHECK(std::string(told.what()) == "belay: rank 3: a\\nb: ends \\x1b[m early (byte 8)");
  CHECK(told.rank() == 3);
  CHECK(told.message() == "ends \x1b[m early");
}

TEST_CASE("a communication error says which ranks, in which operation, and which line there and here") {
  comm_error::details about;
  about.fault = comm_fault::peer_failed;
  about.culprits = {3};
  about.operation = "all_reduce";
  about.operation_number = 17;
  about.message = "bad data";
  about.here = {"layer.cpp", "forward", 10};
  about.there = "reader.cpp:99";
  const comm_error failed(about);
  CHECK(failed.fault() == comm_fault::peer_failed);
  CHECK(failed.about().culprits == std::vector<int>{3});
  CHECK(std::string(failed.what()) ==
        "layer.cpp:10: belay: peer_failed in all_reduce #17, rank 3 at reader.cpp:99: bad data");
  about.culprits = {1, 2};
  CHECK(contains(comm_error(about).what(), ", ranks 1, 2 at"));
  about.culprits = {};
  CHECK_FALSE(contains(comm_error(about).what(), "rank"));
}

TEST_CASE("every fault has its name") {
  CHECK(std::string(name(comm_fault::mismatch)) == "mismatch");
  CHECK(std::string(name(comm_fault::timeout)) == "timeout");
  CHECK(std::string(name(comm_fault::revoked)) == "revoked");
}

using belay::missing_folder;

TEST_CASE("the topmost folder that is not there is named, or what is in its place") {
  CHECK(missing_folder("/nowhere/at/all.json") == " (there is no folder /nowhere)");
  CHECK(missing_folder("/tmp/none-of-belay/all.json") == " (there is no folder /tmp/none-of-belay)");
  CHECK(missing_folder("nowhere/all.json") == " (there is no folder nowhere)");
  CHECK(missing_folder("/dev/null/all.json") == " (/dev/null is no folder)");
}

TEST_CASE("nothing is said where all folders are there") {
  CHECK(missing_folder("all.json").empty());
  CHECK(missing_folder("/all.json").empty());
  CHECK(missing_folder("/tmp//none-of-belay.json").empty());
  CHECK(missing_folder("").empty());
}
