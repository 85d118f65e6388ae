# The command `branchwise` in an image. docs/install.md shows how to build and run it.
FROM python:3.11-slim-bookworm AS base

FROM base AS build
# The address of an index with CPU builds of torch. Unset: the build of the default index, with CUDA.
ARG TORCH_INDEX=""
ARG EXTRAS=""
RUN apt-get update -qq && apt-get install --yes -qq --no-install-recommends make=4.3-* && rm -rf /var/lib/apt/lists/*
WORKDIR /source
# Dependencies are a layer of their own, so that a change of the code does not reinstall them.
COPY Makefile pyproject.toml README.md LICENSE THIRD_PARTY.md constraints*.txt ./
COPY pipelines/stages.py pipelines/
RUN make setup VENV=/opt/branchwise
COPY . .
RUN /opt/branchwise/bin/python -m pip install --quiet --no-cache-dir --no-deps --no-build-isolation --force-reinstall .

FROM base
RUN useradd --uid 1000 --create-home branchwise && install --directory --owner=branchwise /runs
COPY --from=build /opt/branchwise /opt/branchwise
# Runs, trained policies and the cache are in /runs, which a volume can keep.
ENV PATH=/opt/branchwise/bin:$PATH BRANCHWISE_CACHE=/runs/.cache
WORKDIR /runs
USER 1000
COPY --chown=1000 models models
ENTRYPOINT ["branchwise"]
CMD ["--help"]
